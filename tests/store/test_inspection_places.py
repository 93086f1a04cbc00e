"""Inspection finds a delivery wherever it is: in its own row, in a batch, or published together."""

import random
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from typing import Any
from uuid import UUID

import pytest
from psycopg.rows import dict_row

from fixtures.bulk import emit_many
from fixtures.cli import Cli
from fixtures.outbox import Outbox
from outbox_core.model.lifecycle import State
from outbox_core.store.inspect.listing import Filter, Page, select
from outbox_core.store.reading import reading

pytestmark = pytest.mark.pg

EVENTS = 160
CLAIM = """
    INSERT INTO outbox.batch (token, relay_id, claimed_at, claimed_by, lease_until, lanes, seqs)
    SELECT c.token, c.relay, now(), c.owner, now() + interval '1 min', (
               SELECT array_agg(DISTINCT d.lane) FROM outbox.delivery d
                WHERE d.relay_id = c.relay AND d.seq = ANY (c.seqs)), c.seqs
      FROM (VALUES (%s::bigint, %s::integer, %s, %s::bigint[])) AS c (token, relay, owner, seqs)
"""
PUBLISH = """
    INSERT INTO outbox.published (token, relay_id, results)
    SELECT token, relay_id, (SELECT array_agg('t[0]@' || s) FROM unnest(seqs) s)
      FROM outbox.batch WHERE token = %s
"""
# By the superuser's back door: the clock is the database's.
PUBLISHED_AT = """
    ALTER TABLE outbox.published DISABLE TRIGGER published_changes;
    UPDATE outbox.published SET first_at = first_at - token % 60 * interval '1 min',
                                last_at = last_at - token % 60 * interval '1 min';
    ALTER TABLE outbox.published ENABLE ALWAYS TRIGGER published_changes
"""
MERGE = """
    UPDATE outbox.published SET seqs = (SELECT array_agg(s ORDER BY s)
                                          FROM outbox.published p, unnest(p.seqs) s
                                         WHERE p.token = ANY (%(tokens)s))
     WHERE token = (%(tokens)s)[1]
"""
# By reading everything. An event without a delivery waits if a relay may still get it.
EVERYTHING = """
    SELECT e.seq, r.name AS relay, e.event_id, e.event_type, e.tenant_id, e.ordering_key,
           e.created_at, CASE WHEN u.seq IS NOT NULL THEN 'PENDING' ELSE d.state::text END AS state,
           d.hold::text, coalesce(d.attempts, 0) AS attempts, d.claimed_by, d.claimed_at,
           d.lease_until, d.published_at, d.result, d.last_error, d.replay_id,
           CASE WHEN d.state IS NOT NULL
                THEN coalesce(d.available_at, e.available_at, e.created_at) END AS available_at
      FROM outbox.event e
      LEFT JOIN (outbox.deliveries d JOIN outbox.relay r ON r.id = d.relay_id) ON d.seq = e.seq
      LEFT JOIN outbox.unmatched u ON u.seq = e.seq
"""
Row = dict[str, Any]


class Scene:
    """Two relays of which each has claimed, published and failed again and again, in any order."""

    def __init__(self, outbox: Outbox, seed: int) -> None:
        self.outbox = outbox
        self.random = random.Random(seed)
        self.token = 0
        self.relays = [
            outbox.register("plain", ["order.*", "parcel.*"]),
            outbox.register("keyed", ["order.*"], ordering="Key"),
        ]
        for n in range(EVENTS):
            outbox.insert(
                event_type=self.random.choice(("order.created", "order.paid", "parcel.sent", "x")),
                tenant_id=self.random.choice(("a", "b", None)),
                ordering_key=self.random.choice(("k1", "k2", None)),
                available_at=self.random.choice((None, None, "2020-01-01", "2100-01-01")),
                correlation_id=f"c{n % 4}",
            )
        for relay in self.relays:
            for _ in range(12):
                self.claim(relay, publish=self.random.random() < 0.7)
        outbox.conn.execute(PUBLISHED_AT)
        self.merge()
        self.everything = self.read()
        self.conn = outbox.connect(autocommit=True)

    def claim(self, relay: int, publish: bool) -> None:
        """Any events that are in line, together; one of some batches fails, then one is retried."""
        in_line = self.outbox.sql(
            "SELECT seq FROM outbox.delivery WHERE relay_id = %s AND state = 'PENDING'"
            " AND hold = 'NONE' AND attempts = 0",
            relay,
        )
        seqs = [seq for (seq,) in in_line]
        start = self.random.randrange(len(seqs) or 1)
        near = seqs[start : start + self.random.choice((4, 20, EVENTS))]
        if not near:
            return
        self.token += 1
        chosen = sorted(self.random.sample(near, min(len(near), self.random.randint(1, 8))))
        self.outbox.sql(CLAIM, self.token, relay, f"pod-{self.token}", chosen)
        if self.random.random() < 0.5:
            failed = self.random.choice(chosen)
            state = self.random.choice(("DEAD", "PENDING"))
            self.outbox.sql("SELECT outbox.unpack(%s, ARRAY[%s]::bigint[])", self.token, failed)
            self.outbox.sql(
                "UPDATE outbox.delivery SET state = %s::text::outbox.state, claimed_at = NULL,"
                " claimed_by = NULL, claim_token = NULL, lease_until = NULL,"
                " hold = CASE %s WHEN 'PENDING' THEN 'TIME' ELSE 'NONE' END::outbox.hold,"
                """ last_error = '{"class": "x", "code": "T", "text": "no luck"}'"""
                " WHERE relay_id = %s AND seq = %s",
                state,
                state,
                relay,
                failed,
            )
            again = self.outbox.claim(relay, limit=1) if self.random.random() < 0.5 else []
            if again and self.random.random() < 0.5:
                self.outbox.publish(relay, again)
        if publish:
            self.outbox.sql(PUBLISH, self.token)

    def merge(self) -> None:
        for relay in self.relays:
            tokens = self.outbox.sql(
                "SELECT token FROM outbox.published WHERE relay_id = %s ORDER BY last_seq", relay
            )
            some = [token for (token,) in tokens][1:4]
            if len(some) > 1:
                self.outbox.conn.execute(MERGE, {"tokens": some})

    def read(self) -> list[Row]:
        with self.outbox.conn.cursor(row_factory=dict_row) as cursor:
            return cursor.execute(EVERYTHING).fetchall()

    def expected(self, wanted: Filter) -> list[Row]:
        return [row for row in self.everything if fits(row, wanted)]

    def listed(self, wanted: Filter, oldest_first: bool) -> list[Row]:
        """Page by page."""
        page = Page(self.random.choice((5, 20, 50)), oldest_first=oldest_first)
        rows: list[Row] = []
        while True:
            with reading(self.conn):
                found = select(self.conn, wanted, page)
            rows += found.rows
            if found.next_seq is None:
                return rows
            if oldest_first:
                page = replace(page, after_seq=found.next_seq)
            else:
                page = replace(page, before_seq=found.next_seq)


def fits(row: Row, wanted: Filter) -> bool:
    has_delivery = row["relay"] is not None
    return (
        wanted.relay in (None, row["relay"])
        and (not wanted.states or row["state"] in {s.value for s in wanted.states})
        and (wanted.event_type is None or fnmatchcase(row["event_type"], wanted.event_type))
        and wanted.tenant in (None, row["tenant_id"])
        and wanted.key in (None, row["ordering_key"])
        and is_between(row["created_at"], wanted.created_after, wanted.created_before)
        and is_between(row["published_at"], wanted.published_after, wanted.published_before)
        and (
            wanted.attempts_min is None or (has_delivery and row["attempts"] >= wanted.attempts_min)
        )
        and (
            wanted.attempts_max is None or (has_delivery and row["attempts"] <= wanted.attempts_max)
        )
        and (wanted.error is None or wanted.error in str(row["last_error"]))
    )


def is_between(at: datetime | None, first: datetime | None, beyond: datetime | None) -> bool:
    if first is None and beyond is None:
        return True
    return at is not None and (first is None or at >= first) and (beyond is None or at < beyond)


def filters(scene: Scene) -> Iterator[Filter]:
    created = sorted(row["created_at"] for row in scene.everything)
    published = sorted(row["published_at"] for row in scene.everything if row["published_at"])
    a_time, later = published[len(published) // 3], published[len(published) * 2 // 3]
    narrow = (
        Filter(),
        Filter(event_type="order.*"),
        Filter(tenant="a"),
        Filter(key="k1"),
        Filter(created_after=created[EVENTS // 3], created_before=created[EVENTS]),
        Filter(published_after=a_time, published_before=later),
        Filter(published_before=a_time),
        Filter(published_after=published[-1] + timedelta(hours=1)),
        Filter(attempts_min=1),
        Filter(attempts_min=2),
        Filter(attempts_max=0),
        Filter(error="luck"),
        Filter(tenant="b", event_type="order.paid", published_after=a_time),
    )
    states: tuple[tuple[State, ...], ...] = (
        (),
        (State.CLAIMED,),
        (State.PUBLISHED,),
        (State.PENDING, State.DEAD),
        (State.PUBLISHED, State.CLAIMED),
        tuple(State),
    )
    for wanted in narrow:
        for chosen in states:
            for relay in (None, "plain", "keyed"):
                yield replace(wanted, states=chosen, relay=relay)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_every_page_holds_what_reading_everything_finds(outbox: Outbox, seed: int) -> None:
    scene = Scene(outbox, seed)
    assert {(r["state"], r["attempts"] > 1) for r in scene.everything} >= {
        ("CLAIMED", False), ("CLAIMED", True), ("PUBLISHED", False), ("PUBLISHED", True),
        ("PENDING", False), ("DEAD", False),
    }  # fmt: skip
    shown = list(scene.everything[0])
    for wanted in filters(scene):
        for oldest_first in (False, True):
            rows = scene.listed(wanted, oldest_first)
            seqs = [row["seq"] for row in rows]
            assert seqs == sorted(seqs, reverse=not oldest_first), wanted
            found = [{name: row[name] for name in shown} for row in rows]
            assert in_order(found) == in_order(scene.expected(wanted)), wanted


def in_order(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (row["seq"], str(row["relay"])))


def test_what_was_claimed_or_published_together_is_shown_like_any_other(
    outbox: Outbox, cli: Cli
) -> None:
    outbox.register("other", ["none"])
    relay = outbox.register("relay")
    early = "2020-01-01T00:00:00Z"
    published = [outbox.emit("x"), outbox.emit("x", available_at=early)]
    outbox.publish(relay, outbox.claim(relay))
    claimed = [outbox.emit("x"), outbox.emit("x", causation_id=published[1])]
    outbox.claim(relay, owner="pod-7")

    def shown(event: UUID) -> Row:
        (delivery,) = cli.json("show", event)["deliveries"]
        return dict(delivery)

    assert outbox.sql("SELECT 1 FROM outbox.delivery") == []
    together = [shown(e) for e in (*claimed, *published)]
    times = [cli.json("show", e)["created_at"] for e in (*claimed, *published)]
    assert [d["available_at"] for d in together] == [*times[:3], early]
    assert [(d["state"], d["hold"], d["attempts"], d["crashes"]) for d in together] == [
        (state, "NONE", 1, 0) for state in ("CLAIMED", "CLAIMED", "PUBLISHED", "PUBLISHED")
    ]
    assert [(d["claimed_by"], d["result"]) for d in together] == [
        ("pod-7", None), ("pod-7", None), (None, "t[0]@1"), (None, "t[0]@2"),
    ]  # fmt: skip
    effects = cli.json("effects", published[1])["events"]
    assert [e["states"] for e in effects] == [{"relay": "PUBLISHED"}, {"relay": "CLAIMED"}]
    outbox.unpack()
    unpacked = [shown(e) for e in (*claimed, *published)]
    assert unpacked == together


def test_of_an_expired_batch_every_event_is_stuck(outbox: Outbox, cli: Cli) -> None:
    relay = outbox.register("relay")
    emit_many(outbox, 30)
    outbox.fail(relay, outbox.claim(relay, 1))
    first = outbox.claim(relay, 10, owner="pod-1", lease=timedelta(minutes=-2))
    second = outbox.claim(relay, 10, owner="pod-2", lease=timedelta(minutes=-1))
    assert any(c.attempts > 1 for c in first)  # one of them has a row of its own
    outbox.claim(relay, 5, owner="pod-3")
    rows = cli.json("stuck")["expired_claims"]
    assert [row["claimed_by"] for row in rows] == ["pod-1"] * 10 + ["pod-2"] * 10
    assert sorted(row["seq"] for row in rows) == sorted(c.seq for c in (*first, *second))
    assert {row["attempts"] for row in rows} == {1, 2}


def test_a_relay_with_a_batch_in_flight_is_not_idle(outbox: Outbox, cli: Cli) -> None:
    relay = outbox.register("relay")
    emit_many(outbox, 3)
    outbox.sql("UPDATE outbox.delivery SET available_at = now() - interval '5 min'")
    outbox.claim(relay, 1)
    assert cli.json("stuck")["idle_relays"] == []
    outbox.end_leases()
    (row,) = cli.json("stuck")["idle_relays"]
    assert (row["relay"], row["pending"]) == ("relay", 2)


@pytest.mark.parametrize("exact", [(), ("--exact",)])
def test_counts_add_up_all_places(outbox: Outbox, cli: Cli, exact: tuple[str, ...]) -> None:
    scene = Scene(outbox, seed=4)
    outbox.register("new", ["nothing"])
    expected = {name: {"pending": 0, "claimed": 0, "published": 0, "dead": 0}
                for name in ("plain", "keyed", "new")}  # fmt: skip
    for row in scene.everything:
        if row["relay"] is not None:
            expected[row["relay"]][row["state"].lower()] += 1
    counted = cli.json("counts", *exact)["relays"]
    assert {r["relay"]: {s: r[s] for s in expected["plain"]} for r in counted} == expected
    assert not any(r["approximate"] for r in counted)

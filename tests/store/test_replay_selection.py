"""Which events a bulk replay selects, field by field; and what a dry run shows about them."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from fixtures.bulk import Bulk, emit_many, end_all, replay_settings
from fixtures.outbox import Holder, Outbox
from outbox_core.model.lifecycle import State
from outbox_core.store import replays

pytestmark = pytest.mark.pg


@pytest.fixture
def relay(outbox: Outbox) -> int:
    return outbox.register("relay")


def dead(outbox: Outbox, relay: int, text: str = "no luck", **fields: Any) -> UUID:
    event = outbox.emit(fields.pop("event_type", "order.created"), **fields)
    outbox.fail(relay, outbox.claim(relay), State.DEAD, text=text)
    return event


def published(outbox: Outbox, relay: int, **fields: Any) -> UUID:
    event = outbox.emit(fields.pop("event_type", "order.created"), **fields)
    outbox.publish(relay, outbox.claim(relay))
    return event


def selected(outbox: Outbox, select: dict[str, Any], **more: Any) -> list[UUID]:
    """What is planned; a dry run of the same must show the same."""
    matched, found = replays.preview(outbox.conn, replay_settings(select=select, **more))
    bulk = Bulk(outbox, f"r{outbox.value('SELECT count(*) FROM outbox.replay')}", select=select,
                **more)  # fmt: skip
    rows = outbox.sql(
        "SELECT e.event_id FROM outbox.replay_chunk c, unnest(c.seqs) s"
        " JOIN outbox.event e ON e.seq = s WHERE c.replay_id = %s ORDER BY e.seq",
        bulk.id,
    )
    ids = [event_id for (event_id,) in rows]
    assert matched == bulk.matched == len(ids)
    assert [UUID(s) for s in found.samples] == ids[:20]
    return ids


# Field by field -------------------------------------------------------------------------------


def test_by_default_the_dead_are_selected_and_nothing_else(outbox: Outbox, relay: int) -> None:
    published(outbox, relay)
    event = dead(outbox, relay)
    outbox.emit("claimed")
    outbox.claim(relay)
    outbox.emit("pending")
    assert selected(outbox, {}) == [event]


def test_by_state(outbox: Outbox, relay: int) -> None:
    out, gone = published(outbox, relay), dead(outbox, relay)
    anything = {"eventTypes": ["*"]}
    assert selected(outbox, {"states": ["DEAD"]}) == [gone]
    assert selected(outbox, {"states": ["PUBLISHED"], **anything}) == [out]
    for both in (["PUBLISHED", "DEAD"], ["DEAD", "PUBLISHED"]):
        assert selected(outbox, {"states": both, **anything}) == [out, gone]


@pytest.mark.parametrize(
    ("patterns", "wanted"),
    [
        (["order.created"], [0]),
        (["order.*"], [0, 1, 2]),
        (["*.paid", "refund.created"], [1, 3, 5]),
        (["order.%", "order_paid", "order.p_id"], []),
        (["100%*"], [4]),
        (["a\\b.paid"], [5]),
        (["nothing", "*"], [0, 1, 2, 3, 4, 5]),
    ],
)
def test_by_type(outbox: Outbox, relay: int, patterns: Sequence[str], wanted: list[int]) -> None:
    types = ["order.created", "order.paid", "order.", "refund.created", "100% sure", "a\\b.paid"]
    events = [dead(outbox, relay, event_type=t) for t in types]
    assert selected(outbox, {"eventTypes": patterns}) == [events[n] for n in wanted]


def test_by_the_time_it_was_stored(outbox: Outbox, relay: int) -> None:
    events = [dead(outbox, relay) for _ in range(5)]
    times = [outbox.event(e)["created_at"] for e in events]
    since, until = {"after": times[1].isoformat()}, {"before": times[3].isoformat()}
    assert selected(outbox, {"created": since}) == events[1:]
    assert selected(outbox, {"created": until}) == events[:3]
    assert selected(outbox, {"created": {**since, **until}}) == events[1:3]
    early, late = "0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z"
    assert selected(outbox, {"created": {"after": early, "before": late}}) == events
    assert selected(outbox, {"created": {"after": late}}) == []


def test_by_the_time_it_was_published(outbox: Outbox, relay: int) -> None:
    events = [published(outbox, relay) for _ in range(4)]
    dead(outbox, relay)
    times = [outbox.event(e)["published_at"] for e in events]
    both = {"states": ["PUBLISHED", "DEAD"]}
    between = {"after": times[1].isoformat(), "before": times[3].isoformat()}
    assert selected(outbox, {**both, "published": between}) == events[1:3]


def test_ce_35_by_key_aggregate_tenant_flow_and_id(outbox: Outbox, relay: int) -> None:
    events = [
        dead(outbox, relay, ordering_key=f"k{n}", tenant_id=f"t{n}", correlation_id=f"c{n}",
             aggregate_type="Order" if n < 3 else "User", aggregate_id=f"{n % 3}")
        for n in range(5)
    ]  # fmt: skip
    plain = dead(outbox, relay)
    ids = [str(e) for e in [*events, plain]]
    assert selected(outbox, {"orderingKeys": ["k1", "k3", "k9"]}) == [events[1], events[3]]
    assert selected(outbox, {"tenants": ["t0", "t4"]}) == [events[0], events[4]]
    assert selected(outbox, {"correlationIds": ["c2"]}) == [events[2]]
    assert selected(outbox, {"eventIds": [ids[5], ids[0].upper()]}) == [events[0], plain]
    orders = [{"type": "Order", "id": "1"}, {"type": "User", "id": "0"}]
    assert selected(outbox, {"aggregates": orders}) == [events[1], events[3]]
    everything = {"orderingKeys": ["k1", "k3"], "tenants": ["t1", "t2"], "aggregates": orders}
    assert selected(outbox, everything) == [events[1]]


@pytest.mark.parametrize(
    ("pattern", "wanted"),
    [
        ("timed out|MSG_SIZE", [0, 1]),
        ("^connect", []),
        ("^broker .* timed out$", [0]),
        ("(?i)TOO LARGE", [1]),
        ("^TEST$", [0, 1, 2]),  # the code
        ("transient", [0, 1, 2]),  # the class
    ],
)
def test_by_the_last_error(outbox: Outbox, relay: int, pattern: str, wanted: list[int]) -> None:
    texts = ["broker connect timed out", "MSG_SIZE_TOO_LARGE: too large", "refused"]
    events = [dead(outbox, relay, text) for text in texts]
    assert selected(outbox, {"errorMatches": pattern}) == [events[n] for n in wanted]


def test_what_is_written_in_a_selection_is_never_sql(outbox: Outbox, relay: int) -> None:
    evil = "'; DROP SCHEMA outbox CASCADE; -- %s %(id)s {}"
    event = dead(outbox, relay, evil, event_type=evil, ordering_key=evil, tenant_id=evil)
    wanted = {"eventTypes": [evil], "orderingKeys": [evil], "tenants": [evil]}
    assert selected(outbox, wanted) == [event]


# Backfill -------------------------------------------------------------------------------------


def test_a_backfill_is_about_what_the_relay_wants_and_never_had(outbox: Outbox, relay: int) -> None:
    past = [outbox.emit("order.created", tenant_id=t) for t in ("a", "b", "a", None)]
    outbox.emit("user.created", tenant_id="a")
    outbox.emit("outbox.sentinel", tenant_id="a")
    outbox.register("new", ["order.*", "outbox.*"], ["a"])
    had = outbox.emit("order.created", tenant_id="a")
    assert outbox.event(had, "new")["state"] == "PENDING"
    wanted = {"relay": "new", "action": "Backfill"}
    assert selected(outbox, {}, **wanted) == [past[0], past[2]]
    assert selected(outbox, {"eventIds": [str(past[2]), str(had)]}, **wanted) == [past[2]]
    until = {"before": outbox.event(past[2])["created_at"].isoformat()}
    assert selected(outbox, {"created": until}, **wanted) == [past[0]]


@pytest.mark.parametrize("ordering", ["None", "Key"])
def test_a_backfill_gives_first_deliveries_in_the_order_of_their_keys(
    outbox: Outbox, relay: int, ordering: str
) -> None:
    emit_many(outbox, 300, keys=4)
    end_all(outbox, relay)
    new = outbox.register("new", ordering=ordering)
    emit_many(outbox, 20, keys=4)
    future = outbox.value("SELECT now() + interval '1 h'")
    fill = Bulk(outbox, relay="new", action="Backfill")
    assert fill.run(takers=3)[:4] == (300, 300, 0, {})
    row = outbox.events("relay = 'new'")[0]
    assert (row["hold"], row["attempts"], row["replay_id"]) == ("TIME", 0, fill.id)
    assert future > row["available_at"]
    claims = Holder(outbox, new).claim() if ordering == "Key" else outbox.claim(new, 1000)
    assert {c.seq for c in claims} == set(range(1, 321))
    if ordering == "Key":
        assert [c.seq for c in claims] == list(range(1, 321))


def test_a_backfill_waits_for_the_time_that_the_producer_set(outbox: Outbox, relay: int) -> None:
    event = outbox.emit(available_at=datetime.now(UTC) + timedelta(hours=1))
    new = outbox.register("new")
    Bulk(outbox, relay="new", action="Backfill").run()
    assert outbox.event(event, "new")["hold"] == "TIME"
    assert outbox.claim(new) == []


@pytest.mark.parametrize("ordering", ["None", "Key"])
def test_a_backfill_takes_nothing_away_from_another_new_relay(
    outbox: Outbox, ordering: str
) -> None:
    emit_many(outbox, 120, keys=5)  # nobody wants them yet
    for name in ("relay", "other"):  # both paused: neither has looked for what came before it
        outbox.register(name, ordering=ordering)
    assert Bulk(outbox, action="Backfill").run().replayed == 120
    while outbox.value("SELECT outbox.route_unmatched(50)"):
        pass
    for name in ("relay", "other"):
        assert outbox.states(name) == {"PENDING": 120}
    assert outbox.value("SELECT count(*) FROM outbox.unmatched") == 0


def test_what_arrived_meanwhile_is_counted_and_nobody_waits_for_anybody_any_more(
    outbox: Outbox,
) -> None:
    emit_many(outbox, 120)  # nobody wants them yet
    assert outbox.value("SELECT count(*) FROM outbox.unmatched") == 120
    outbox.register("relay")
    fill = Bulk(outbox, action="Backfill")
    outbox.sql("SELECT outbox.route_unmatched(30)")
    assert fill.run()[:4] == (120, 90, 30, {"Delivered": 30})
    outbox.sql("SELECT outbox.route_unmatched()")  # as relays do: nothing is given twice
    assert outbox.value("SELECT count(*) FROM outbox.unmatched") == 0
    assert outbox.states() == {"PENDING": 120}
    assert Bulk(outbox, "again", action="Backfill").matched == 0


# The dry run ------------------------------------------------------------------------------------


def test_a_dry_run_shows_what_would_happen(outbox: Outbox, relay: int) -> None:
    events = [
        dead(outbox, relay, event_type="a", ordering_key="k1"),
        dead(outbox, relay, event_type="a", ordering_key="k1"),
        published(outbox, relay, event_type="b", ordering_key="k1"),
        dead(outbox, relay, event_type="b", ordering_key="k2"),
        published(outbox, relay, event_type="c", ordering_key="k3"),
    ]
    both = {"states": ["DEAD", "PUBLISHED"], "eventTypes": ["a", "b"]}
    settings = replay_settings(select=both, rate={"eventsPerSecond": 3}, dryRun=True)
    before = outbox.sql("SELECT d FROM outbox.delivery d ORDER BY seq")
    outbox.conn.execute("SET default_transaction_read_only = on")
    matched, found = replays.preview(outbox.conn, settings)
    outbox.conn.execute("SET default_transaction_read_only = off")
    assert outbox.sql("SELECT d FROM outbox.delivery d ORDER BY seq") == before
    assert matched == 4
    kinds = [(t.event_type, t.state, t.count) for t in found.by_type]
    assert kinds == [("a", "DEAD", 2), ("b", "DEAD", 1), ("b", "PUBLISHED", 1)]
    assert found.oldest == outbox.event(events[0])["created_at"]
    assert found.newest == outbox.event(events[3])["created_at"]
    assert (found.keys, found.estimated_seconds) == (2, 2)
    assert [UUID(s) for s in found.samples] == events[:4]
    again, unknown, order = found.warnings
    assert "duplicates: 1 were published before" in again
    assert "3 were never acknowledged" in unknown
    assert "order: 1 of 2 keys have later events" in order


def test_a_dry_run_warns_of_nothing_and_of_too_much(outbox: Outbox, relay: int) -> None:
    matched, found = replays.preview(outbox.conn, replay_settings())
    assert (matched, found.oldest, found.keys, found.estimated_seconds) == (0, None, 0, 0)
    assert found.warnings == ("nothing matches: nothing would happen",)
    emit_many(outbox, 30, keys=30)
    end_all(outbox, relay, "DEAD")
    matched, found = replays.preview(outbox.conn, replay_settings(maxEvents=29))
    assert (matched, len(found.samples), found.keys) == (30, 20, 30)
    assert "maxEvents is 29: nothing would be replayed" in found.warnings[0]


def test_a_dry_run_of_a_backfill_knows_no_states(outbox: Outbox) -> None:
    emit_many(outbox, 3, keys=1)
    outbox.register("relay")
    matched, found = replays.preview(outbox.conn, replay_settings(action="Backfill"))
    assert matched == 3
    assert [(t.event_type, t.state, t.count) for t in found.by_type] == [("order.created", None, 3)]
    assert found.warnings == ()

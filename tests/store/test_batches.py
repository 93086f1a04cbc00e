"""
What was claimed or published together: one place for each delivery, whoever sends which statement.

A statement moves deliveries from place to place as the lifecycle allows, or is refused.
"""

import threading
from contextlib import suppress
from typing import Any

import psycopg
import pytest
from psycopg import errors as pg

from dev.services import wait_until
from fixtures.bulk import emit_many
from fixtures.outbox import Holder, Outbox
from outbox_core.errors import RequestRefused, StoreError

pytestmark = pytest.mark.pg

CLAIM = (
    "INSERT INTO outbox.batch (token, relay_id, claimed_at, claimed_by, lease_until, lanes, seqs)"
    " VALUES (7, %s, now(), 'me', now() + interval '1 min', '{-1}', %s)"
)
PLACES = {
    "delivery": "SELECT array_agg(seq ORDER BY seq) FROM outbox.delivery WHERE state = %s",
    "batch": "SELECT array_agg(s ORDER BY s) FROM outbox.batch, unnest(seqs) s WHERE %s <> ''",
    "published": "SELECT array_agg(s ORDER BY s) FROM outbox.published, unnest(seqs) s"
    " WHERE %s <> ''",
}
SEEN = """
    SELECT seq, relay, state, attempts, claimed_by, claimed_at, lease_until, published_at, result
      FROM outbox.events ORDER BY seq, relay
"""


def place(outbox: Outbox, name: str, state: str = "PENDING") -> list[int]:
    return outbox.value(PLACES[name], state) or []


@pytest.fixture(params=["origin", "replica"])
def relay(outbox: Outbox, request: pytest.FixtureRequest) -> int:
    """With ten events; also in a session that pretends to be a replica."""
    relay = outbox.register()
    emit_many(outbox, 10)
    outbox.sql(f"SET session_replication_role = {request.param}")
    return relay


def test_a_first_claim_leaves_no_row_behind(outbox: Outbox, relay: int) -> None:
    claims = outbox.claim(relay, 4)
    assert place(outbox, "batch") == [c.seq for c in claims] == [1, 2, 3, 4]
    assert place(outbox, "delivery") == [5, 6, 7, 8, 9, 10]
    assert outbox.publish(relay, claims) == []
    assert place(outbox, "batch") == []
    assert place(outbox, "published") == [1, 2, 3, 4]
    assert [e["result"] for e in outbox.events("state = 'PUBLISHED'")] == [
        f"t[0]@{n}" for n in (1, 2, 3, 4)
    ]


def test_to_insert_a_batch_is_to_claim(outbox: Outbox, relay: int) -> None:
    outbox.sql(CLAIM, relay, [2, 3])
    assert outbox.states() == {"PENDING": 8, "CLAIMED": 2}
    assert place(outbox, "delivery") == [1, 4, 5, 6, 7, 8, 9, 10]


@pytest.mark.parametrize(
    "seqs",
    [
        pytest.param([1, 99], id="one that does not exist"),
        pytest.param([1, 1], id="one twice"),
        pytest.param([2, 1], id="not ascending"),
        pytest.param([], id="nothing"),
        pytest.param([9, 10], id="one that failed before"),
        pytest.param([8], id="one that waits for its time"),
    ],
)
def test_only_what_is_in_line_is_claimed_together(
    outbox: Outbox, relay: int, seqs: list[int]
) -> None:
    outbox.sql("UPDATE outbox.delivery SET hold = 'TIME' WHERE seq IN (8, 10)")
    (tenth,) = [c for c in outbox.claim(relay, 1) if c.seq == 10] or outbox.claim(relay, 1)
    outbox.fail(relay, [tenth])
    before = outbox.sql(SEEN)
    with pytest.raises((pg.SerializationFailure, pg.RestrictViolation, pg.NotNullViolation)):
        outbox.sql(CLAIM, relay, seqs)
    assert outbox.sql(SEEN) == before


def test_what_is_claimed_is_not_claimed_again(outbox: Outbox, relay: int) -> None:
    outbox.claim(relay, 2)
    with pytest.raises(pg.SerializationFailure):
        outbox.sql(CLAIM, relay, [2, 3])
    assert place(outbox, "batch") == [1, 2]


def test_only_what_was_claimed_is_published(outbox: Outbox, relay: int) -> None:
    (claim, *_) = outbox.claim(relay, 2)
    publish = "INSERT INTO outbox.published (token, relay_id, results) VALUES (%s, %s, %s)"
    for token, of, results in [
        (1, relay, ["x", "y"]),
        (claim.token, relay, ["x"]),
        (claim.token, relay + 1, ["x", "y"]),
    ]:
        with pytest.raises(pg.RestrictViolation, match="what is published was claimed"):
            outbox.sql(publish, token, of, results)
    invented = "INSERT INTO outbox.published VALUES (1, 3, 3, now(), now(), %s, 1, '{3}', '{x}')"
    with pytest.raises(pg.RestrictViolation, match="what is published was claimed"):
        outbox.sql(invented, relay)
    assert outbox.states() == {"CLAIMED": 2, "PENDING": 8}
    outbox.sql(publish, claim.token, relay, ["x", "y"])
    assert outbox.states() == {"PUBLISHED": 2, "PENDING": 8}


@pytest.mark.parametrize("table", ["batch", "published"])
def test_members_that_leave_become_rows_and_nobody_sees_a_difference(
    outbox: Outbox, relay: int, table: str
) -> None:
    claims = outbox.claim(relay, 5)
    if table == "published":
        outbox.publish(relay, claims)
    state = "CLAIMED" if table == "batch" else "PUBLISHED"
    before = outbox.sql(SEEN)
    outbox.sql(f"UPDATE outbox.{table} SET seqs = '{{2,4}}'")
    assert (place(outbox, table), place(outbox, "delivery", state)) == ([2, 4], [1, 3, 5])
    assert outbox.sql(SEEN) == before
    outbox.sql(f"DELETE FROM outbox.{table}")
    assert (place(outbox, table), place(outbox, "delivery", state)) == ([], [1, 2, 3, 4, 5])
    assert outbox.sql(SEEN) == before
    if table == "batch":
        assert outbox.publish(relay, claims) == []
    assert outbox.states() == {"PUBLISHED": 5, "PENDING": 5}


@pytest.mark.parametrize(
    "change",
    [
        "seqs = '{1,2,3,9}'",
        "seqs = '{}'",
        "seqs = '{1,1,2}'",
        "relay_id = 2",
        "token = 9",
    ],
)
@pytest.mark.parametrize("table", ["batch", "published"])
def test_members_only_leave(outbox: Outbox, relay: int, table: str, change: str) -> None:
    claims = outbox.claim(relay, 3)
    if table == "published":
        outbox.publish(relay, claims)
    before = outbox.sql(SEEN)
    with pytest.raises(pg.RestrictViolation):
        outbox.sql(f"UPDATE outbox.{table} SET {change}")
    assert outbox.sql(SEEN) == before


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE outbox.batch SET claimed_by = 'other'",
        "UPDATE outbox.batch SET claimed_at = now()",
        "UPDATE outbox.batch SET lanes = '{1}'",
        "TRUNCATE outbox.batch",
        "TRUNCATE outbox.published",
        "TRUNCATE outbox.batch CASCADE",
    ],
)
def test_what_was_done_does_not_change(outbox: Outbox, relay: int, statement: str) -> None:
    outbox.publish(relay, outbox.claim(relay, 3))
    outbox.claim(relay, 3)
    before = outbox.sql(SEEN)
    with pytest.raises(pg.RestrictViolation):
        outbox.sql(statement)
    assert outbox.sql(SEEN) == before


def test_a_renewal_keeps_members_of_both_kinds(outbox: Outbox, relay: int) -> None:
    first = outbox.claim(relay, 2)
    outbox.fail(relay, first)
    claims = outbox.claim(relay, 5)
    assert sorted(c.seq for c in claims) == [1, 2, 3, 4, 5]
    assert place(outbox, "batch") == [3, 4, 5]
    outbox.end_leases()
    kept = outbox.deliveries(relay).renew(claims[0].token, [c.seq for c in claims])
    assert kept == 5
    late = "SELECT count(*) FROM outbox.deliveries WHERE lease_until < now()"
    assert outbox.value(late) == 0


@pytest.mark.parametrize("bad", [[3], [1, 3], [1, 4], [3, 4, 5], [1, 2, 3, 4, 5]])
def test_each_of_a_batch_ends_by_itself(outbox: Outbox, relay: int, bad: list[int]) -> None:
    """Retried and fresh events in one claim, of which any may fail."""
    outbox.fail(relay, outbox.claim(relay, 2))
    claims = outbox.claim(relay, 5)
    good = [c for c in claims if c.seq not in bad]
    outbox.fail(relay, [c for c in claims if c.seq in bad], text="bad luck")
    if good:
        assert outbox.publish(relay, good) == []
        assert outbox.publish(relay, good) == []  # the answer was lost
    for event in outbox.events("seq <= 5"):
        is_bad = event["seq"] in bad
        assert event["state"] == ("PENDING" if is_bad else "PUBLISHED")
        if is_bad:
            assert event["last_error"]["text"] == "bad luck"
        else:
            assert event["result"] == f"t[0]@{event['seq']}"
        assert event["attempts"] == (2 if event["seq"] <= 2 else 1)


def test_what_was_neither_published_nor_failed_stays_claimed(outbox: Outbox, relay: int) -> None:
    claims = outbox.claim(relay, 5)
    assert outbox.publish(relay, claims[1:3]) == []
    assert outbox.states() == {"PUBLISHED": 2, "CLAIMED": 3, "PENDING": 5}
    assert outbox.publish(relay, claims) == []
    assert outbox.states() == {"PUBLISHED": 5, "PENDING": 5}


def test_a_relay_may_claim_and_publish_and_nothing_else(outbox: Outbox) -> None:
    relay = outbox.register()
    emit_many(outbox, 4)
    with outbox.connect(autocommit=True) as conn:
        conn.execute("SET ROLE outbox_relay")
        assert outbox.publish(relay, outbox.claim(relay, 2, conn=conn), conn) == []
        for statement in (
            "DELETE FROM outbox.delivery",
            "TRUNCATE outbox.batch",
            "TRUNCATE outbox.published",
        ):
            with pytest.raises(pg.InsufficientPrivilege):
                conn.execute(statement)
    assert outbox.states() == {"PUBLISHED": 2, "PENDING": 2}


def test_lanes_of_a_batch_are_those_of_its_members(outbox: Outbox) -> None:
    relay = outbox.register(ordering="Key")
    holder = Holder(outbox, relay)
    emit_many(outbox, 20, keys=5)
    claims = holder.claim()
    lanes: Any = outbox.value("SELECT lanes FROM outbox.batch")
    assert sorted(lanes) == sorted({c.lane for c in claims})
    outbox.sql("UPDATE outbox.lane SET token = NULL")
    other = Holder(outbox, relay, owner="pod-2")
    assert not set(other.lanes) & set(lanes)  # not before these have ended


def test_within_a_trigger_of_somebody_elses_the_same_rules_hold(outbox: Outbox, relay: int) -> None:
    """Where an application's trigger sends the statement, and not one of ours."""
    outbox.publish(relay, outbox.claim(relay, 3))
    outbox.claim(relay, 3)
    before = outbox.sql(SEEN)
    outbox.sql("CREATE TABLE theirs (statement text)")
    outbox.sql(
        "CREATE FUNCTION theirs() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " EXECUTE NEW.statement; RETURN NEW; END $$"
    )
    outbox.sql(
        "CREATE TRIGGER theirs BEFORE INSERT ON theirs FOR EACH ROW EXECUTE FUNCTION theirs()"
    )
    outbox.sql("ALTER TABLE theirs ENABLE ALWAYS TRIGGER theirs")
    for statement in (
        "DELETE FROM outbox.batch",
        "DELETE FROM outbox.published",
        "UPDATE outbox.published SET seqs = '{1}'",
    ):
        outbox.sql("INSERT INTO theirs VALUES (%s)", statement)
        assert outbox.sql(SEEN) == before
    for statement in (
        "DELETE FROM outbox.delivery",
        "INSERT INTO outbox.published (token, relay_id, results) VALUES (1, 1, '{x}')",
        "INSERT INTO outbox.delivery (relay_id, seq, available_at, attempts)"
        " VALUES (1, 1, now(), 1)",
    ):
        with pytest.raises(pg.RestrictViolation):
            outbox.sql("INSERT INTO theirs VALUES (%s)", statement)
        assert outbox.sql(SEEN) == before
    outbox.sql("SET outbox.moving = 'on'")  # it alone opens nothing
    for statement in ("DELETE FROM outbox.batch", "DELETE FROM outbox.published"):
        outbox.sql("INSERT INTO theirs VALUES (%s)", statement)
        assert outbox.sql(SEEN) == before
    for place in (outbox.sql, lambda text: outbox.sql("INSERT INTO theirs VALUES (%s)", text)):
        with pytest.raises(pg.RestrictViolation):
            place("DELETE FROM outbox.delivery")


@pytest.mark.parametrize(
    "conflict",
    ["DO NOTHING", "(token) DO UPDATE SET lease_until = EXCLUDED.lease_until"],
)
def test_a_row_that_is_not_inserted_takes_nothing(
    outbox: Outbox, relay: int, conflict: str
) -> None:
    outbox.sql(CLAIM, relay, [1, 2])
    outbox.sql(f"{CLAIM} ON CONFLICT {conflict}", relay, [3, 4])
    assert outbox.states() == {"CLAIMED": 2, "PENDING": 8}
    publish = "INSERT INTO outbox.published (token, relay_id, results) VALUES (7, %s, '{a,b}')"
    outbox.sql(publish, relay)
    with pytest.raises(pg.RestrictViolation, match="a token is drawn for one claim"):
        outbox.sql(CLAIM, relay, [3, 4])
    assert outbox.states() == {"PUBLISHED": 2, "PENDING": 8}


@pytest.mark.parametrize("table", ["delivery", "batch", "published"])
@pytest.mark.parametrize("event", ["INSERT", "UPDATE", "DELETE"])
def test_a_trigger_of_somebody_elses_that_leaves_rows_out_loses_nothing(
    outbox: Outbox, relay: int, table: str, event: str
) -> None:
    outbox.publish(relay, outbox.claim(relay, 3))
    claims = outbox.claim(relay, 3)
    before = outbox.sql(SEEN)
    outbox.sql("CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS"
               " $$ BEGIN RETURN NULL; END $$")  # fmt: skip
    outbox.sql(f"CREATE TRIGGER zz BEFORE {event} ON outbox.{table} FOR EACH ROW"
               " EXECUTE FUNCTION nothing()")  # fmt: skip
    outbox.sql(f"ALTER TABLE outbox.{table} ENABLE ALWAYS TRIGGER zz")
    for statement in (
        "DELETE FROM outbox.batch",
        "DELETE FROM outbox.published",
        "UPDATE outbox.published SET seqs = '{1}'",
        "UPDATE outbox.batch SET seqs = '{4}'",
    ):
        with suppress(pg.RestrictViolation):
            outbox.sql(statement)
        assert outbox.sql(SEEN) == before
    with suppress(RequestRefused, StoreError):
        outbox.publish(relay, claims)
    with suppress(RequestRefused, StoreError):
        outbox.claim(relay, 3)
    events = outbox.sql("SELECT seq FROM outbox.events ORDER BY seq")
    assert events == [(n,) for n in range(1, 11)]


def test_what_is_claimed_or_published_gets_no_second_delivery(outbox: Outbox, relay: int) -> None:
    outbox.publish(relay, outbox.claim(relay, 3))
    with outbox.connect(autocommit=True) as conn:
        conn.execute("SET ROLE outbox_relay")
        with pytest.raises(pg.InsufficientPrivilege):
            conn.execute(
                "INSERT INTO outbox.delivery (relay_id, seq, available_at) VALUES (%s, 1, now())",
                [relay],
            )
    assert len(outbox.events()) == 10


def test_a_change_of_the_order_waits_for_a_claim_and_blocks_its_lane(outbox: Outbox) -> None:
    relay = outbox.register()
    outbox.emit(ordering_key="k")
    with outbox.connect() as claiming:
        assert len(outbox.claim(relay, conn=claiming)) == 1
        outbox.emit(ordering_key="k")
        thread = threading.Thread(target=outbox.register, kwargs={"ordering": "Key"})
        thread.start()
        wait_until(lambda: _waits(outbox.dsn), 10, "the registration waits for the claim")
        claiming.commit()
        thread.join(10)
    holder = Holder(outbox, relay)
    assert len(holder.lanes) == 63
    assert holder.claim() == []


def _waits(dsn: str) -> bool:
    with psycopg.connect(dsn) as other:
        query = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        return other.execute(query).fetchone() is not None


def test_routing_and_backfills_refuse_an_isolation_that_hides_what_others_commit(
    outbox: Outbox,
) -> None:
    with outbox.connect() as conn:
        conn.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        with pytest.raises(pg.InvalidTransactionState, match="repeatable read") as caught:
            conn.execute("SELECT outbox.route_unmatched()")
    assert "READ COMMITTED" in str(caught.value.diag.message_hint)


def test_an_event_is_not_routed_to_a_relay_that_is_claiming_it(outbox: Outbox) -> None:
    """The row that the relay already had goes while routing waits for it."""
    outbox.emit()
    relay = outbox.register()  # it has not been offered the event yet
    outbox.sql(
        "INSERT INTO outbox.delivery (relay_id, seq, available_at) VALUES (%s, 1, now())", relay
    )
    failed: list[Exception] = []

    def route() -> None:
        with outbox.connect(autocommit=True) as conn:
            try:
                conn.execute("SELECT outbox.route_unmatched()")
            except pg.SerializationFailure as error:
                failed.append(error)

    with outbox.connect() as claiming:
        assert len(outbox.claim(relay, conn=claiming)) == 1
        thread = threading.Thread(target=route)
        thread.start()
        blocked = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        wait_until(lambda: outbox.sql(blocked), 10, "routing waits for the claim")
        claiming.commit()
        thread.join(10)
    assert failed
    assert outbox.sql("SELECT relay_id, seq, state FROM outbox.deliveries") == [
        (relay, 1, "CLAIMED")
    ]
    outbox.sql("SELECT outbox.route_unmatched()")  # it is tried again
    assert outbox.sql("SELECT relay_id, seq, state FROM outbox.deliveries") == [
        (relay, 1, "CLAIMED")
    ]
    assert outbox.value("SELECT count(*) FROM outbox.unmatched") == 0


# Merging ------------------------------------------------------------------------------------------


@pytest.fixture
def merges_soon(outbox: Outbox) -> None:
    outbox.sql("CREATE OR REPLACE FUNCTION outbox.least_published() RETURNS integer LANGUAGE sql"
               " IMMUTABLE AS 'SELECT 6'")  # fmt: skip


@pytest.mark.usefixtures("merges_soon")
def test_small_rows_become_one_and_nobody_sees_a_difference(outbox: Outbox, relay: int) -> None:
    other = outbox.register("other")
    emit_many(outbox, 3)
    for size in (1, 2, 1, 3, 1, 2):
        outbox.publish(relay, outbox.claim(relay, size))
    outbox.publish(other, outbox.claim(other, 2))
    before = outbox.sql(SEEN)
    deliveries = outbox.deliveries(relay)
    assert deliveries.merge()
    assert outbox.sql(SEEN) == before
    sizes = "SELECT size FROM outbox.published WHERE relay_id = %s ORDER BY first_seq"
    assert outbox.sql(sizes, relay) == [(7,), (1,), (2,)]
    assert outbox.value("SELECT cardinality(times) FROM outbox.published WHERE size = 7") == 7
    outbox.unpack()
    assert outbox.sql(SEEN) == before


@pytest.mark.usefixtures("merges_soon")
def test_what_is_small_altogether_is_left_until_more_comes(outbox: Outbox, relay: int) -> None:
    for _ in range(5):
        outbox.publish(relay, outbox.claim(relay, 1))
    assert not outbox.deliveries(relay).merge()
    assert outbox.value("SELECT count(*) FROM outbox.published") == 5


def test_only_whole_rows_are_merged(outbox: Outbox, relay: int) -> None:
    outbox.register("other")
    for size in (2, 3):
        outbox.publish(relay, outbox.claim(relay, size))
    claims = outbox.claim(relay, 2)
    before = outbox.sql(SEEN)
    for seqs in ([1, 2, 3], [1, 2, 3, 4, 5, 6], [1, 2, 8], [1, 2, 99]):
        with pytest.raises(pg.RestrictViolation, match="only what is published, and all of a row"):
            outbox.sql("UPDATE outbox.published SET seqs = %s WHERE first_seq = 1", seqs)
    assert outbox.sql(SEEN) == before
    outbox.sql("UPDATE outbox.published SET seqs = '{2,3,4,5}' WHERE first_seq = 1")
    assert place(outbox, "delivery", "PUBLISHED") == [1]
    assert outbox.publish(relay, claims) == []
    assert [e["state"] for e in outbox.events("relay = 'relay' AND seq <= 5")] == ["PUBLISHED"] * 5


def test_merging_beside_a_worker_and_a_replay_loses_nothing(outbox: Outbox) -> None:
    relay = outbox.register()
    emit_many(outbox, 600)
    for _ in range(200):
        outbox.publish(relay, outbox.claim(relay, 3))
    with outbox.connect() as replaying:
        replaying.execute("SELECT 1 FROM outbox.published WHERE first_seq = 1 FOR UPDATE")
        assert outbox.deliveries(relay).merge()  # without the one that is locked
    assert outbox.states() == {"PUBLISHED": 600}
    assert outbox.value("SELECT count(*) FROM outbox.published") < 40


def test_a_replay_finds_what_is_merged_while_it_waits(outbox: Outbox) -> None:
    relay = outbox.register()
    emit_many(outbox, 600)
    for _ in range(200):
        outbox.publish(relay, outbox.claim(relay, 3))
    back: list[int] = []

    def replay() -> None:
        with psycopg.connect(outbox.dsn) as conn:
            row = conn.execute(
                "INSERT INTO outbox.requeued (relay_id, seqs, replay_id, reset_attempts, due)"
                " VALUES (%s, '{10,20}', 'by hand', true, now()) RETURNING seqs",
                [relay],
            ).fetchone()
            back.extend(row[0] if row else ())

    with outbox.connect() as merging:
        merging.execute("SELECT outbox.merge_published(%s)", [relay])
        thread = threading.Thread(target=replay)
        thread.start()
        wait_until(lambda: _waits(outbox.dsn), 10, "the replay waits for the merge")
        merging.commit()
        thread.join(10)
    assert back == [10, 20]
    assert outbox.states() == {"PUBLISHED": 598, "PENDING": 2}


def test_a_merge_passes_by_large_rows_without_reading_their_members(outbox: Outbox) -> None:
    relay = outbox.register()
    emit_many(outbox, 60_000)
    outbox.publish(relay, outbox.claim(relay, 300))
    for _ in range(29):
        outbox.publish(relay, outbox.claim(relay, 2000))
    outbox.publish(relay, outbox.claim(relay, 300))
    merge = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) SELECT outbox.merge_published({relay})"
    plan = outbox.value(merge)[0]["Plan"]
    assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] < 1500
    sizes = outbox.sql("SELECT size, count(*) FROM outbox.published GROUP BY 1 ORDER BY 1")
    assert sizes == [(600, 1), (2000, 29)]


@pytest.mark.parametrize("statement", ["record", "renew"])
def test_a_batch_is_found_by_its_token_among_thousands_of_dead_ones(
    outbox: Outbox, relay: int, statement: str
) -> None:
    """While somebody reads for a long time, and the table was analysed when it was empty."""
    outbox.sql("VACUUM ANALYZE outbox.batch")
    with outbox.connect() as reader:
        reader.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        reader.execute("SELECT 1 FROM outbox.relay")
        emit_many(outbox, 3000)
        for _ in range(1500):
            outbox.publish(relay, outbox.claim(relay, 1))
        (claim,) = outbox.claim(relay, 1)
        call = {
            "record": "SELECT outbox.finish_published(%s, %s, %s, '{x}')",
            "renew": "SELECT outbox.renew(%s, %s, %s, '1 min')",
        }[statement]
        explain = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {call}"
        plan = outbox.value(explain, relay, claim.token, [claim.seq])[0]["Plan"]
    assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] < 150

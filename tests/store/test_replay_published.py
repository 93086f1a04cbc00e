"""Replays of what was published together: each takes its own members out, and no others move."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from psycopg import errors as pg

from dev.services import Postgres, wait_until
from fixtures.bulk import Bulk, Witness, emit_many, replay_settings
from fixtures.outbox import Holder, Outbox
from fixtures.replay_places import members, misplaced, publish_together
from outbox_core.model.lifecycle import State
from outbox_core.store import replays
from outbox_core.store.connection import Connection
from outbox_core.store.intervene.interventions import Interventions, Result

pytestmark = pytest.mark.pg

PUBLISHED = {"states": ["PUBLISHED"], "eventTypes": ["*"]}
ORDERINGS = pytest.mark.parametrize("ordering", ["None", "Key"])
REST = """
    SELECT seq, state, attempts, result, published_at FROM outbox.events
     WHERE state = 'PUBLISHED' ORDER BY seq
"""


def these(outbox: Outbox, *seqs: int) -> dict[str, Any]:
    found = outbox.sql("SELECT event_id::text FROM outbox.event WHERE seq = ANY (%s)", list(seqs))
    return {"states": ["PUBLISHED", "DEAD"], "eventIds": [e for (e,) in found]}


def replay(outbox: Outbox, seq: int, conn: Connection | None = None) -> Result:
    event = outbox.value("SELECT event_id FROM outbox.event WHERE seq = %s", seq)
    (result,) = Interventions(conn or outbox.conn, "ann", "again").replay([event])
    return result


def locks_awaited(outbox: Outbox) -> Callable[[], bool]:
    watching = outbox.connect(autocommit=True)
    waiting = (
        "SELECT count(*) > 0 FROM pg_stat_activity"
        " WHERE wait_event_type = 'Lock' AND datname = current_database()"
    )

    def awaited() -> bool:
        row = watching.execute(waiting).fetchone()
        return row is not None and bool(row[0])

    return awaited


@contextmanager
def meanwhile(outbox: Outbox, action: Callable[[], Any]) -> Iterator[list[Any]]:
    """It waits for a lock while the block runs; its result, or its error, is there afterwards."""
    result: list[Any] = []
    awaited = locks_awaited(outbox)
    with ThreadPoolExecutor() as threads:
        running = threads.submit(action)
        wait_until(awaited, 10, "the other to wait for us")
        yield result
        result.append(running.exception(20) or running.result(20))


# One of many ----------------------------------------------------------------------------------


@ORDERINGS
@pytest.mark.parametrize("by_hand", [True, False])
@pytest.mark.parametrize("seq", [1, 5, 10])
def test_the_others_stay_as_they_were_published(
    outbox: Outbox, ordering: str, by_hand: bool, seq: int
) -> None:
    relay = outbox.register("relay", ordering=ordering)
    emit_many(outbox, 20, keys=3)
    publish_together(outbox, relay, size=10)
    before = outbox.sql(REST)
    if by_hand:
        assert replay(outbox, seq).status == "done"
    else:
        bulk = Bulk(outbox, select=these(outbox, seq))
        assert bulk.run()[:4] == (1, 1, 0, {})
    assert outbox.sql(REST) == [row for row in before if row[0] != seq]
    assert members(outbox, "published") == [n for n in range(1, 21) if n != seq]
    (row,) = outbox.events("state = 'PENDING'")
    assert (row["seq"], row["hold"], row["attempts"], row["attempts_in_budget"]) == (
        *(seq, "TIME", 1, 0),
    )
    assert row["previous_published_at"] == before[seq - 1][4]
    assert (row["published_at"], row["result"], row["last_error"]) == (None, None, None)
    assert misplaced(outbox, relay) == []


def test_it_becomes_the_row_that_it_would_have_been(outbox: Outbox) -> None:
    """In all columns, also in those that nobody shows: claims go by them."""
    relay = outbox.register("relay", ordering="Key")
    emit_many(outbox, 2, keys=1)
    publish_together(outbox, relay, size=1)
    outbox.sql("DELETE FROM outbox.published WHERE first_seq = 2")
    assert Bulk(outbox, select=PUBLISHED).run().replayed == 2
    member, row = outbox.sql("SELECT to_jsonb(d) - 'seq' FROM outbox.delivery d ORDER BY seq")
    assert member == row


def test_times_of_merged_members_stay_their_own(outbox: Outbox) -> None:
    relay = outbox.register("relay")
    for _ in range(30):
        emit_many(outbox, 20)
        publish_together(outbox, relay, size=20)
    assert outbox.value("SELECT outbox.merge_published(%s)", relay) > 20
    before = {row[0]: row[1:] for row in outbox.sql(REST)}
    assert len({row[-1] for row in before.values()}) == 30
    wanted = [*range(1, 30), 77, 300, 480]
    assert Bulk(outbox, select=these(outbox, *wanted)).run().replayed == len(wanted)
    assert {row[0]: row[1:] for row in outbox.sql(REST)} == {
        seq: row for seq, row in before.items() if seq not in wanted
    }
    for row in outbox.events("state = 'PENDING'"):
        assert row["previous_published_at"] == before[row["seq"]][-1]
    assert misplaced(outbox, relay) == []


def test_attempts_are_kept_where_asked_for(outbox: Outbox) -> None:
    relay = outbox.register("relay")
    outbox.emit()
    publish_together(outbox, relay)
    Bulk(outbox, select=PUBLISHED, resetAttempts=False).run()
    (row,) = outbox.events()
    assert (row["attempts"], row["attempts_in_budget"]) == (1, 1)


@pytest.mark.parametrize("ordering", ["None", "Key"])
def test_lane_and_key_are_those_of_the_ordering_of_today(outbox: Outbox, ordering: str) -> None:
    before = {"None": "Key", "Key": "None"}[ordering]
    relay = outbox.register("relay", ordering=before)
    emit_many(outbox, 9, keys=3)
    publish_together(outbox, relay, size=4)
    outbox.register("relay", ordering=ordering)
    assert Bulk(outbox, select=PUBLISHED).run().replayed == 9
    wrong = (
        "SELECT 1 FROM outbox.delivery d JOIN outbox.event e USING (seq)"
        " WHERE (d.lane, d.key_hash) IS DISTINCT FROM"
        " (outbox.delivery_lane(%(by)s, e.ordering_key, e.seq),"
        "  outbox.delivery_key(%(by)s, e.ordering_key))"
    )
    assert outbox.conn.execute(wrong, {"by": ordering == "Key"}).fetchall() == []


# Each place -----------------------------------------------------------------------------------


def in_each_place(outbox: Outbox, relay: int) -> dict[str, int]:
    """One event each, by where it is."""
    names = ["member", "row", "dead", "flying", "flying again", "waiting"]
    emit_many(outbox, len(names))
    places = dict(zip(names, range(1, 7), strict=True))

    def claim(n: int) -> Any:
        return outbox.claim(relay, n)

    outbox.publish(relay, claim(1))
    outbox.fail(relay, claim(1))
    outbox.publish(relay, claim(1))
    outbox.fail(relay, claim(1), State.DEAD)
    flying, again = claim(2)
    outbox.fail(relay, [again])
    claim(1)
    assert (flying.seq, again.seq) == (4, 5)
    return places


def test_in_bulk_each_event_counts_by_its_place(outbox: Outbox) -> None:
    relay = outbox.register("relay")
    emit_many(outbox, 6)
    publish_together(outbox, relay)
    bulk = Bulk(outbox, select=PUBLISHED)
    assert bulk.matched == 6
    assert Bulk(outbox, "quicker", select=PUBLISHED).run().replayed == 6
    settle(outbox, relay)
    assert bulk.take()[1:4] == (2, 4, {"Claimed": 2, "Dead": 1, "Pending": 1})


def settle(outbox: Outbox, relay: int) -> None:
    """Of six that are due again: 1 and 2 are published, 3 is dead, 4 and 5 are in flight."""
    first, second, third, *_ = outbox.claim(relay, 5)
    outbox.publish(relay, [first, second])
    outbox.fail(relay, [third], State.DEAD)


def test_what_is_in_flight_for_the_first_time_is_skipped_and_counted(outbox: Outbox) -> None:
    """No plan has it: but whatever it is counted as, it is in flight."""
    relay = outbox.register("relay")
    emit_many(outbox, 3)
    publish_together(outbox, relay)
    bulk = Bulk(outbox, select=PUBLISHED)
    emit_many(outbox, 2)
    outbox.claim(relay)
    skipped = "SELECT outbox.replay_skipped(p, '{1, 2, 4, 5, 6}') FROM outbox.replay p"
    assert outbox.value(skipped) == {"Claimed": 4}
    assert bulk.run().replayed == 3
    dead = "SELECT outbox.replay_skipped(p, '{4, 5}') FROM outbox.replay p"
    assert outbox.value(dead) == {"Claimed": 2}


def test_by_hand_each_event_is_judged_by_its_place(outbox: Outbox) -> None:
    relay = outbox.register("relay")
    places = in_each_place(outbox, relay)
    assert members(outbox, "published") == [1]
    assert members(outbox, "batch") == [4]
    results = {name: replay(outbox, seq) for name, seq in places.items()}
    assert {name: r.status for name, r in results.items()} == {
        **dict.fromkeys(["member", "row", "dead"], "done"),
        **dict.fromkeys(["flying", "flying again", "waiting"], "refused"),
    }
    assert "in flight" in results["flying"].detail
    assert "CLAIMED by pod-1" in results["flying"].detail
    assert results["waiting"].detail.startswith("it is PENDING")
    assert members(outbox, "batch") == [4]
    assert misplaced(outbox, relay) == []


@pytest.mark.parametrize("ordering", ["None", "Key"])
def test_the_audit_shows_a_member_as_the_row_that_it_would_have(
    outbox: Outbox, ordering: str
) -> None:
    relay = outbox.register("relay", ordering=ordering)
    emit_many(outbox, 2, keys=1)
    publish_together(outbox, relay)
    seen = replay(outbox, 1)
    assert seen.before is not None
    assert seen.after is not None
    assert seen.before.keys() == seen.after.keys()
    outbox.sql("DELETE FROM outbox.published")
    row = outbox.value("SELECT to_jsonb(d) FROM outbox.delivery d WHERE seq = 2")
    same = seen.before.keys() - {
        "seq",
        "available_at",
        "result",
        "published_at",
        "key_hash",
        "lane",
    }
    assert {k: seen.before[k] for k in same} == {k: row[k] for k in same}
    kept = ["seq", "relay_id", "key_hash", "lane", "bytes", "attempts"]
    assert [seen.before[k] for k in kept] == [seen.after[k] for k in kept]
    assert outbox.sql("SELECT before, after FROM outbox.audit") == [(seen.before, seen.after)]
    assert seen.before["result"] == "t[0]@1"
    assert seen.after["previous_published_at"] == seen.before["published_at"]


def test_a_dry_run_by_hand_takes_nothing_out(outbox: Outbox) -> None:
    relay = outbox.register("relay")
    emit_many(outbox, 3)
    publish_together(outbox, relay)
    before = outbox.sql("SELECT p FROM outbox.published p")
    event = outbox.value("SELECT event_id FROM outbox.event WHERE seq = 2")
    (plan,) = Interventions(outbox.conn, "ann", "x", dry_run=True).replay([event])
    assert plan.status == "planned"
    assert outbox.sql("SELECT p FROM outbox.published p") == before
    assert outbox.sql("SELECT 1 FROM outbox.delivery") == []


def test_what_is_published_counts_as_later_wherever_it_is(outbox: Outbox) -> None:
    relay = outbox.register("relay", ordering="Key")
    emit_many(outbox, 4, keys=1)
    publish_together(outbox, relay, size=2)
    outbox.sql("DELETE FROM outbox.published WHERE first_seq = 3")
    event = outbox.value("SELECT event_id FROM outbox.event WHERE seq = 1")
    (plan,) = Interventions(outbox.conn, "ann", "x", dry_run=True).replay([event])
    assert any("3 later event(s)" in w for w in plan.warnings)


# At the same time -----------------------------------------------------------------------------


def test_of_two_people_who_replay_an_event_at_once_one_does(outbox: Outbox) -> None:
    relay = outbox.register("relay")
    emit_many(outbox, 5)
    publish_together(outbox, relay)
    second = outbox.connect(autocommit=True)
    with outbox.connect() as first:
        assert replay(outbox, 3, first).status == "done"
        with meanwhile(outbox, lambda: replay(outbox, 3, second)) as result:
            first.commit()
    assert (result[0].status, result[0].detail[:13]) == ("refused", "it is PENDING")
    assert outbox.value("SELECT count(*) FROM outbox.audit") == 1
    assert misplaced(outbox, relay) == []


def test_where_the_first_gives_up_the_second_does(outbox: Outbox) -> None:
    relay = outbox.register("relay")
    emit_many(outbox, 5)
    publish_together(outbox, relay)
    second = outbox.connect(autocommit=True)
    with outbox.connect() as first:
        replay(outbox, 3, first)
        with meanwhile(outbox, lambda: replay(outbox, 3, second)) as result:
            first.rollback()
    assert result[0].status == "done"
    assert misplaced(outbox, relay) == []


@ORDERINGS
def test_replays_that_overlap_never_deadlock_and_share_what_there_is(
    outbox: Outbox, ordering: str
) -> None:
    relay = outbox.register("relay", ordering=ordering)
    emit_many(outbox, 3000, keys=9)
    publish_together(outbox, relay)
    witness = Witness(outbox)
    bulks = [
        Bulk(outbox, f"r{n}", select={"states": ["PUBLISHED"], "eventTypes": ["*"]})
        for n in range(3)
    ]
    events = outbox.sql("SELECT event_id FROM outbox.event WHERE seq %% 50 = 0 ORDER BY seq DESC")
    person = outbox.connect(autocommit=True)
    by_hand: list[Result] = []

    def hands() -> None:
        for (event,) in events:
            by_hand.extend(Interventions(person, "ann", "again").replay([event]))

    threads = [threading.Thread(target=b.run, args=(2,), daemon=True) for b in bulks]
    threads.append(threading.Thread(target=hands, daemon=True))
    deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    outbox.sql("SELECT pg_stat_force_next_flush()")
    assert outbox.value(deadlocks) == 0
    done = sum(r.status == "done" for r in by_hand)
    assert len(by_hand) == 60
    assert sum(b.progress().replayed for b in bulks) + done == 3000
    for bulk in bulks:
        seen, progress = witness.seqs(bulk.id), bulk.progress()
        assert len(seen) == len(set(seen)) == progress.replayed
        assert progress.replayed + progress.skipped == 3000
        assert set(progress.because) <= {"Pending"}
    assert outbox.states() == {"PENDING": 3000}
    assert misplaced(outbox, relay) == []


def test_a_batch_that_is_being_recorded_is_not_overwritten(outbox: Outbox) -> None:
    """A worker records, a replay takes: what is still in flight for the replay is skipped."""
    relay = outbox.register("relay")
    emit_many(outbox, 10)
    publish_together(outbox, relay, size=5)
    first = Bulk(outbox, "first", select=these(outbox, *range(1, 11)))
    emit_many(outbox, 5)
    claims = outbox.claim(relay)
    with outbox.connect() as worker:
        outbox.publish(relay, claims, conn=worker)  # not committed yet
        assert first.run()[:4] == (10, 10, 0, {})
        skipped = (
            "SELECT outbox.requeue(p, false, '{11, 12, 13, 14, 15}', now()) FROM outbox.replay p"
        )
        assert outbox.value(skipped) == 0
        worker.commit()
    assert members(outbox, "published") == [11, 12, 13, 14, 15]
    assert outbox.states() == {"PENDING": 10, "PUBLISHED": 5}
    assert misplaced(outbox, relay) == []


@ORDERINGS
def test_replays_beside_a_worker_lose_and_double_nothing(outbox: Outbox, ordering: str) -> None:
    relay = outbox.register("relay", ordering=ordering)
    emit_many(outbox, 600, keys=7)
    publish_together(outbox, relay)
    done = threading.Event()
    published: list[int] = []
    failures: list[Exception] = []

    def work() -> None:
        try:
            conn = outbox.connect(autocommit=True)
            holder = Holder(outbox, relay) if ordering == "Key" else None
            while True:
                claims = holder.claim(40) if holder else outbox.claim(relay, 40, conn=conn)
                if not claims:
                    waiting = "SELECT 1 FROM outbox.delivery WHERE state = 'PENDING' LIMIT 1"
                    if done.is_set() and not conn.execute(waiting).fetchall():
                        return
                    continue
                assert outbox.publish(relay, claims, conn=conn) == []
                published.extend(c.seq for c in claims)
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    replayed = 0
    for turn in range(5):
        emit_many(outbox, 100, keys=7)
        replayed += Bulk(outbox, f"turn-{turn}", select=PUBLISHED).run(takers=2).replayed
    done.set()
    thread.join()
    assert failures == []
    assert len(published) == 500 + replayed
    assert outbox.states() == {"PUBLISHED": 1100}
    assert misplaced(outbox, relay) == []


def test_what_is_merged_at_this_moment_is_found_where_it_went(outbox: Outbox) -> None:
    relay = outbox.register("relay")
    for _ in range(30):
        emit_many(outbox, 20)
        publish_together(outbox, relay, size=20)
    bulk = Bulk(outbox, select=PUBLISHED, rate={"eventsPerSecond": 100_000})
    with outbox.connect() as merging:
        merging.execute("SELECT outbox.merge_published(%s)", (relay,))
        with meanwhile(outbox, bulk.take) as result:
            merging.commit()
    assert result[0][:3] == ("taken", 600, 0)
    assert members(outbox, "published") == []
    assert misplaced(outbox, relay) == []


def test_what_was_claimed_while_a_backfill_gave_it_is_not_given_again(outbox: Outbox) -> None:
    emit_many(outbox, 10)
    relay = outbox.register("relay")
    slow = Bulk(outbox, "slow", action="Backfill")
    Bulk(outbox, "quick", action="Backfill").run()
    # In line, so that a relay claims them together.
    outbox.sql("UPDATE outbox.delivery SET hold = 'NONE'")
    outbox.sql("ALTER TABLE outbox.delivery DISABLE TRIGGER USER")
    outbox.sql("UPDATE outbox.delivery SET age_from = NULL")
    outbox.sql("ALTER TABLE outbox.delivery ENABLE ALWAYS TRIGGER delivery_starts_pending")
    with outbox.connect() as worker:
        claims = outbox.claim(relay, conn=worker)
        assert len(claims) == 10
        with meanwhile(outbox, slow.take) as result:
            worker.commit()
    assert result[0].outcome == "busy"
    assert misplaced(outbox, relay) == []
    assert slow.take()[:4] == ("taken", 0, 10, {"Delivered": 10})


# In order -------------------------------------------------------------------------------------


def test_bands_of_keys_come_back_in_order_from_arrays_that_they_share(outbox: Outbox) -> None:
    relay = outbox.register("relay", ordering="Key")
    emit_many(outbox, 4000, keys=40)
    publish_together(outbox, relay, size=300)
    witness = Witness(outbox)
    bulk = Bulk(outbox, select=PUBLISHED)
    assert outbox.value("SELECT count(DISTINCT band) FROM outbox.replay_chunk") == 4
    assert bulk.run(takers=6)[:4] == (4000, 4000, 0, {})
    assert sorted(witness.seqs(bulk.id)) == list(range(1, 4001))
    assert witness.keys_in_order(bulk.id)
    assert members(outbox, "published") == []
    assert misplaced(outbox, relay) == []


# Nobody else ----------------------------------------------------------------------------------


def test_only_what_was_published_comes_back_this_way(outbox: Outbox) -> None:
    relay, other = outbox.register("relay"), outbox.register("other")
    emit_many(outbox, 6)
    claims = outbox.claim(relay, 2)
    outbox.publish(relay, claims)
    outbox.claim(relay, 2)
    door = (
        "INSERT INTO outbox.requeued (relay_id, seqs, replay_id, reset_attempts, due)"
        " VALUES (%s, %s, 'mine', true, now()) RETURNING seqs"
    )
    assert outbox.value(door, relay, [2, 3, 4, 5, 99]) == [2]
    assert outbox.value(door, relay, [2, 3, 4, 5, 99]) is None
    assert outbox.value(door, other, [1, 2]) is None
    assert outbox.value(door, relay, []) is None
    assert misplaced(outbox, relay) == []
    assert misplaced(outbox, other) == []
    assert outbox.states("relay") == {"PUBLISHED": 1, "CLAIMED": 2, "PENDING": 3}
    with pytest.raises(pg.RestrictViolation):
        outbox.sql(
            "INSERT INTO outbox.delivery (relay_id, seq, available_at, hold, attempts)"
            " VALUES (%s, 1, now(), 'TIME', 1)",
            relay,
        )


def test_a_relays_role_may_replay_and_a_reader_may_not(outbox: Outbox, postgres: Postgres) -> None:
    relay = outbox.register("relay")
    emit_many(outbox, 4)
    publish_together(outbox, relay)
    bulk = Bulk(outbox, select=PUBLISHED)
    database = outbox.value("SELECT current_database()")
    for role in ("outbox_reader", "outbox_relay"):
        name = f"{role}_{database}"
        outbox.sql(f"CREATE ROLE {name} LOGIN IN ROLE {role}")
        try:
            with psycopg.connect(postgres.dsn(database, name), autocommit=True) as conn:
                if role == "outbox_relay":
                    assert bulk.take(conn).replayed == 4
                else:
                    with pytest.raises(Exception, match=r"permission denied|outbox_relay"):
                        bulk.take(conn)
        finally:
            outbox.sql(f"DROP ROLE {name}")


# How long -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_what_a_chunk_skipped_is_counted_in_a_moment(outbox: Outbox) -> None:
    relay = outbox.register("relay")
    emit_many(outbox, 50_000)
    publish_together(outbox, relay, size=500)
    asked = replay_settings(select={"states": ["DEAD"]})
    replays.plan(outbox.conn, asked, replays.begin(outbox.conn, asked))
    outbox.sql("SET statement_timeout = '500ms'")
    counted = (
        "SELECT outbox.replay_skipped(p, ARRAY(SELECT generate_series(%s::bigint, 50000, %s)))"
        " FROM outbox.replay p"
    )
    for step in (1, 10):
        first = 50_000 - 5000 * step + step
        assert outbox.value(counted, first, step) == {"Published": 5000}

"""A bulk replay from beginning to end: what it moves, what it leaves alone, what is kept."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from dev.services import PgBouncer, Postgres, wait_until
from fixtures.bulk import Bulk, emit_many, end_all, replay_settings
from fixtures.cli import Cli
from fixtures.outbox import Holder, Outbox
from outbox_core.errors import (
    OutboxError,
    PermissionDenied,
    RelayUnknown,
    RequestRefused,
    SelectionInvalid,
    TooManyEvents,
)
from outbox_core.model.lifecycle import State
from outbox_core.store import replays
from outbox_core.store.connection import connect

pytestmark = pytest.mark.pg

PUBLISHED = {"states": ["PUBLISHED"], "eventTypes": ["*"]}


@pytest.fixture
def relay(outbox: Outbox) -> int:
    return outbox.register("relay")


def deliveries(outbox: Outbox) -> list[tuple[Any, ...]]:
    return outbox.sql("SELECT d FROM outbox.delivery d ORDER BY d.relay_id, d.seq")


# What comes back ------------------------------------------------------------------------------


def test_a_dead_event_comes_back_due_now_with_a_fresh_budget(outbox: Outbox, relay: int) -> None:
    event = outbox.emit(max_attempts=3)
    outbox.fail(relay, outbox.claim(relay))
    outbox.fail(relay, outbox.claim(relay), State.DEAD)
    bulk = Bulk(outbox)
    assert bulk.matched == 1
    assert bulk.take() == ("taken", 1, 0, {}, 0.0)
    row = outbox.event(event)
    assert (row["state"], row["hold"], row["replay_id"]) == ("PENDING", "TIME", bulk.id)
    assert (row["attempts"], row["attempts_in_budget"], row["last_error"]) == (2, 0, None)
    assert row["available_at"] <= outbox.value("SELECT now()")
    assert bulk.take().outcome == "done"
    (claim,) = outbox.claim(relay)
    assert (claim.event_id, claim.attempts, claim.spent) == (str(event), 3, 1)


def test_attempts_and_error_are_kept_where_asked_for(outbox: Outbox, relay: int) -> None:
    event = outbox.emit()
    outbox.fail(relay, outbox.claim(relay), State.DEAD, text="no topic")
    Bulk(outbox, resetAttempts=False).run()
    row = outbox.event(event)
    assert (row["attempts"], row["attempts_in_budget"]) == (1, 1)
    assert row["last_error"]["text"] == "no topic"


def test_a_published_event_comes_back_and_its_time_is_remembered(
    outbox: Outbox, relay: int
) -> None:
    event = outbox.emit()
    outbox.publish(relay, outbox.claim(relay))
    before = outbox.event(event)
    Bulk(outbox, select=PUBLISHED).run()
    row = outbox.event(event)
    assert (row["state"], row["published_at"], row["result"]) == ("PENDING", None, None)
    assert row["previous_published_at"] == before["published_at"]
    outbox.fail(relay, outbox.claim(relay), State.DEAD)
    Bulk(outbox, "another").run()
    assert outbox.event(event)["previous_published_at"] == before["published_at"]


def test_a_replay_of_a_replay_is_another_replay(outbox: Outbox, relay: int) -> None:
    emit_many(outbox, 120)
    for turn in range(3):
        end_all(outbox, relay)
        bulk = Bulk(outbox, f"turn-{turn}", select=PUBLISHED)
        assert bulk.run().replayed == 120
        assert bulk.take().outcome == "done"
    end_all(outbox, relay)
    assert Bulk(outbox, "turn-2", select=PUBLISHED).take().outcome == "done"
    assert outbox.sql("SELECT DISTINCT state, attempts FROM outbox.delivery") == [("PUBLISHED", 4)]


def test_of_another_relay_nothing_is_touched(outbox: Outbox, relay: int) -> None:
    other = outbox.register("other")
    event = outbox.emit()
    for each in (relay, other):
        end_all(outbox, each, "DEAD")
    Bulk(outbox).run()
    assert outbox.event(event, "relay")["state"] == "PENDING"
    assert outbox.event(event, "other")["state"] == "DEAD"


# The frozen set -------------------------------------------------------------------------------


def test_what_dies_after_the_freeze_is_not_taken(outbox: Outbox, relay: int) -> None:
    emit_many(outbox, 60)
    end_all(outbox, relay, "DEAD")
    bulk = Bulk(outbox)
    late = outbox.emit()
    outbox.fail(relay, outbox.claim(relay), State.DEAD)
    assert bulk.run()[:6] == (60, 60, 0, {}, 2, 2)
    assert outbox.event(late)["state"] == "DEAD"


def test_what_is_on_its_way_when_its_turn_comes_is_skipped_and_counted(
    outbox: Outbox, relay: int
) -> None:
    events = [outbox.emit() for _ in range(5)]
    end_all(outbox, relay, "DEAD")
    bulk = Bulk(outbox)
    # Another replay was quicker, and of what it brought back one waits, one is claimed, one is out.
    Bulk(outbox, "quicker", select={"eventIds": [str(e) for e in events[:3]]}).run()
    claimed, published = outbox.claim(relay, 2)
    outbox.publish(relay, [published])
    before = [outbox.event(e) for e in events[:3]]
    taken = bulk.take()
    assert taken.because == {"Pending": 1, "Claimed": 1, "Published": 1}
    assert (taken.replayed, taken.skipped) == (2, 3)
    assert [outbox.event(e) for e in events[:3]] == before
    assert claimed.event_id == str(events[0])
    assert bulk.progress()[:4] == (5, 2, 3, taken.because)


def test_progress_is_what_the_ledger_adds_up_to(outbox: Outbox, relay: int) -> None:
    emit_many(outbox, 333)
    end_all(outbox, relay)
    bulk = Bulk(outbox, select=PUBLISHED)
    Bulk(outbox, "other", select=PUBLISHED, maxEvents=1000).take()
    seen = bulk.run()
    (row,) = outbox.sql(
        "SELECT sum(replayed), sum((skipped->>'Pending')::int), count(*)"
        " FROM outbox.replay_ledger WHERE replay_id = %s",
        bulk.id,
    )
    assert row == (283, 50, 7)
    assert (seen.replayed, seen.skipped, seen.chunks_done) == row
    assert seen.chunks == 7


def test_a_row_that_somebody_holds_is_waited_for_only_so_long(outbox: Outbox, relay: int) -> None:
    emit_many(outbox, 10)
    end_all(outbox, relay, "DEAD")
    bulk = Bulk(outbox)
    with outbox.connect() as other:
        other.execute("SELECT 1 FROM outbox.delivery WHERE seq = 5 FOR UPDATE")
        assert bulk.take().outcome == "busy"
        assert outbox.states() == {"DEAD": 10}
    assert bulk.take().replayed == 10


# Beginning, planning, ending --------------------------------------------------------------------


def test_every_step_may_be_repeated(outbox: Outbox, relay: int) -> None:
    emit_many(outbox, 120)
    end_all(outbox, relay, "DEAD")
    settings = replay_settings()
    assert replays.begin(outbox.conn, settings) == (relay, False, False, False, None)
    known = replays.begin(outbox.conn, settings)
    assert replays.plan(outbox.conn, settings, known) == 120
    emit_many(outbox, 10)
    end_all(outbox, relay, "DEAD")
    assert replays.plan(outbox.conn, settings, known) == 120
    assert replays.begin(outbox.conn, settings) == (relay, False, True, False, 120)
    bulk = Bulk(outbox)
    assert bulk.take().replayed == 50
    with pytest.raises(RequestRefused, match="1 of 3 chunks"):
        replays.finish(outbox.conn, bulk.id)
    assert bulk.run().replayed == 120
    for _ in range(2):
        replays.finish(outbox.conn, bulk.id)
    assert replays.begin(outbox.conn, settings) == (relay, False, True, True, 120)
    assert outbox.value("SELECT count(*) FROM outbox.audit WHERE action = 'replay-end'") == 1


def test_once_it_was_stopped_no_task_adds_to_what_was_counted(outbox: Outbox, relay: int) -> None:
    """Tasks on other machines may live longer than the driver that has counted."""
    emit_many(outbox, 120)
    end_all(outbox, relay, "DEAD")
    bulk = Bulk(outbox)
    bulk.take()
    watching = outbox.connect(autocommit=True)
    waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'transactionid'"

    def waits() -> bool:
        return watching.execute(waiting).fetchone() == (1,)

    with ThreadPoolExecutor() as task, outbox.connect() as stopping:
        stopping.execute("UPDATE outbox.replay SET stopped_at = now()")
        taking = task.submit(bulk.take)
        wait_until(waits, 10, "the task waits for the replay's row")
        stopping.commit()
        with pytest.raises(OutboxError, match="was stopped meanwhile"):
            taking.result(10)
    assert bulk.take().outcome == "done"
    assert bulk.progress().replayed == 50
    assert outbox.states() == {"PENDING": 50, "DEAD": 70}


def test_a_replay_that_was_stopped_goes_on_where_it_was(outbox: Outbox, relay: int) -> None:
    emit_many(outbox, 120)
    end_all(outbox, relay, "DEAD")
    bulk = Bulk(outbox)
    bulk.take()
    for _ in range(2):
        replays.stop(outbox.conn, bulk.id)
    assert outbox.value("SELECT stopped_at IS NOT NULL FROM outbox.replay")
    assert outbox.states() == {"PENDING": 50, "DEAD": 70}
    again = Bulk(outbox)
    assert not outbox.value("SELECT stopped_at IS NOT NULL FROM outbox.replay")
    assert again.run().replayed == 120
    replays.finish(outbox.conn, bulk.id)
    replays.stop(outbox.conn, bulk.id)  # too late: nothing
    actions = outbox.sql("SELECT action FROM outbox.audit ORDER BY id")
    assert actions == [("replay-begin",), ("replay-stop",), ("replay-end",)]


def test_nothing_that_matches_is_a_replay_that_is_done(outbox: Outbox, relay: int) -> None:
    outbox.emit()
    bulk = Bulk(outbox)
    assert bulk.matched == 0
    assert bulk.take().outcome == "done"
    replays.finish(outbox.conn, bulk.id)
    assert outbox.states() == {"PENDING": 1}


def test_a_chunk_is_not_taken_before_there_is_a_plan(outbox: Outbox, relay: int) -> None:
    settings = replay_settings()
    with pytest.raises(RequestRefused, match="not planned"):
        replays.take(outbox.conn, settings.id, "worker")
    replays.begin(outbox.conn, settings)
    with pytest.raises(RequestRefused, match="not planned"):
        replays.take(outbox.conn, settings.id, "worker")


def test_a_dry_run_leaves_nothing(outbox: Outbox, relay: int) -> None:
    known = replays.begin(outbox.conn, replay_settings(dryRun=True))
    assert (known.relay_id, known.planned) == (relay, False)
    assert outbox.sql("SELECT 1 FROM outbox.replay") == []


def test_where_more_match_than_allowed_nothing_happens_at_all(outbox: Outbox, relay: int) -> None:
    emit_many(outbox, 101)
    end_all(outbox, relay, "DEAD")
    before = deliveries(outbox)
    with pytest.raises(TooManyEvents, match="more than 100 events match"):
        Bulk(outbox, maxEvents=100)
    assert deliveries(outbox) == before
    assert outbox.sql("SELECT 1 FROM outbox.replay_chunk") == []
    assert outbox.sql("SELECT 1 FROM outbox.audit") == []
    assert Bulk(outbox, "exactly", maxEvents=101).matched == 101


@pytest.mark.parametrize("pattern", ["(", "a{2,1}", "[z-a]", "\\"])
def test_a_bad_regular_expression_is_refused_with_postgresqls_message(
    outbox: Outbox, relay: int, pattern: str
) -> None:
    settings = replay_settings(select={"errorMatches": pattern})
    for refused in (replays.begin, replays.preview):
        with pytest.raises(SelectionInvalid, match="invalid regular expression"):
            refused(outbox.conn, settings)
    assert outbox.sql("SELECT 1 FROM outbox.replay") == []


def test_what_postgresql_cannot_store_is_no_selection(outbox: Outbox, relay: int) -> None:
    settings = replay_settings(select={"tenants": ["a\x00b"]})
    for refused in (replays.begin, replays.preview):
        with pytest.raises(SelectionInvalid, match="cannot be used"):
            refused(outbox.conn, settings)


def test_an_unknown_relay_is_refused_with_a_list_of_the_known_ones(outbox: Outbox) -> None:
    settings = replay_settings(relay="orders")
    with pytest.raises(RelayUnknown, match="has registered"):
        replays.begin(outbox.conn, settings)
    outbox.register("billing")
    for refused in (replays.begin, replays.preview):
        with pytest.raises(RelayUnknown, match=r"no relay 'orders'.*billing"):
            refused(outbox.conn, settings)


def test_a_relay_that_was_retired_gets_nothing_back(outbox: Outbox, relay: int) -> None:
    emit_many(outbox, 10)
    end_all(outbox, relay, "DEAD")
    bulk = Bulk(outbox)
    outbox.sql("SELECT outbox.retire_relay('relay', 'ann', 'gone')")
    with pytest.raises(RequestRefused, match="retired"):
        bulk.take()
    with pytest.raises(RelayUnknown):
        replays.begin(outbox.conn, bulk.settings)
    outbox.register("relay")
    with pytest.raises(RequestRefused, match="another OutboxReplay"):
        replays.begin(outbox.conn, bulk.settings)
    assert outbox.states("relay (retired #1)") == {"DEAD": 10}


# Order ----------------------------------------------------------------------------------------


def test_a_replay_goes_by_the_ordering_of_today(outbox: Outbox, relay: int) -> None:
    emit_many(outbox, 200, keys=3)
    end_all(outbox, relay)
    ordered = Holder(outbox, outbox.register("relay", ordering="Key"))
    Bulk(outbox, select=PUBLISHED).run()
    claims = ordered.claim()
    assert [c.seq for c in claims] == list(range(1, 201))
    outbox.publish(relay, claims)
    ordered.expire()
    outbox.register("relay", ordering="None")
    Bulk(outbox, "again", select=PUBLISHED).run()
    assert len(outbox.claim(relay, 1000)) == 200


def test_a_plan_from_before_the_relay_ordered_is_done_in_seq_order(
    outbox: Outbox, relay: int
) -> None:
    emit_many(outbox, 300, keys=7)
    end_all(outbox, relay)
    bulk = Bulk(outbox, select=PUBLISHED)
    outbox.register("relay", ordering="Key")
    with outbox.connect() as slow:
        assert replays.take(slow, bulk.id, "slow").outcome == "taken"
        assert bulk.take().outcome == "busy"
        slow.commit()
    assert bulk.run(takers=4).replayed == 300
    firsts = outbox.sql(
        "SELECT c.first_seq FROM outbox.replay_ledger l JOIN outbox.replay_chunk c"
        " USING (replay_id, band, n) ORDER BY l.at"
    )
    assert firsts == [(1,), (51,), (101,), (151,), (201,), (251,)]


# The pace ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_however_many_take_the_pace_is_that_of_the_request(outbox: Outbox, relay: int) -> None:
    emit_many(outbox, 3000)
    end_all(outbox, relay, "DEAD")
    Bulk(outbox, pace=1000).run(takers=6)
    times = outbox.sql("SELECT extract(epoch FROM at)::float8, replayed FROM outbox.replay_ledger")
    started, ended = min(times)[0], max(times)[0]
    assert 2.6 < ended - started < 6  # 3 s, but for the last chunk, and for a busy machine
    for at, _ in times:  # never more than two chunks and a tenth of a second ahead
        soon = sum(n for other, n in times if at <= other < at + 0.5)
        assert soon <= 500 + 100 + 100


def test_a_new_pace_holds_at_once(outbox: Outbox, relay: int) -> None:
    emit_many(outbox, 150)
    end_all(outbox, relay, "DEAD")
    bulk = Bulk(outbox, pace=1)
    assert bulk.take().outcome == "taken"
    assert 40 < bulk.take().wait <= 50
    replays.set_pace(outbox.conn, bulk.id, 100)
    taken = bulk.take()
    assert (taken.outcome, taken.replayed) == ("wait", 0)
    assert 0 < taken.wait <= 0.5
    assert bulk.progress().pace == 100


def test_what_is_skipped_costs_no_time(outbox: Outbox, relay: int) -> None:
    emit_many(outbox, 200)
    end_all(outbox, relay, "DEAD")
    bulk = Bulk(outbox, pace=1)
    Bulk(outbox, "quicker").run()
    for _ in range(4):
        assert bulk.take().because == {"Pending": 50}
    assert bulk.take().outcome == "done"


def test_the_age_of_what_waits_is_that_of_the_backlog(outbox: Outbox, relay: int) -> None:
    assert replays.live_age(outbox.conn, relay) == 0
    outbox.emit()
    outbox.sql("UPDATE outbox.delivery SET available_at = now() - interval '1 min'")
    assert 60 <= replays.live_age(outbox.conn, relay) < 90


# What is kept -----------------------------------------------------------------------------------


def test_oo_64_who_replayed_what_and_why_is_in_the_audit(
    outbox: Outbox, relay: int, cli: Cli
) -> None:
    emit_many(outbox, 60)
    end_all(outbox, relay, "DEAD")
    bulk = Bulk(outbox, select={"eventTypes": ["order.*"]}, requestedBy="ann")
    bulk.run()
    replays.finish(outbox.conn, bulk.id)
    end, begin = cli.json("audit")["audit"]
    assert (begin["action"], begin["actor"], begin["relay"]) == ("replay-begin", "ann", "relay")
    assert begin["reason"] == "OPS-42: the topic was created"
    assert begin["before"]["request"]["select"] == {"eventTypes": ["order.*"]}
    assert begin["after"]["matched"] == 60
    assert (end["action"], end["event_id"]) == ("replay-end", None)
    assert (end["after"]["replayed"], end["after"]["skipped"]) == (60, {})
    assert "60 planned > 60 replayed, 0 skipped" in cli("audit")
    Bulk(outbox, "nobody")
    assert cli.json("audit")["audit"][0]["actor"] == "unknown"


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE outbox.replay_ledger SET replayed = 0",
        "DELETE FROM outbox.replay_ledger",
        "TRUNCATE outbox.replay_ledger",
        "UPDATE outbox.replay_chunk SET seqs = '{1}'",
        "DELETE FROM outbox.replay",
        "UPDATE outbox.replay SET reason = 'another'",
        "UPDATE outbox.replay SET states = '{PUBLISHED}'",
        "UPDATE outbox.replay SET matched = 0",
        "UPDATE outbox.replay SET finished_at = NULL",
    ],
)
def test_neither_plan_nor_ledger_is_changed_by_anybody(
    outbox: Outbox, relay: int, change: str
) -> None:
    emit_many(outbox, 10)
    end_all(outbox, relay, "DEAD")
    bulk = Bulk(outbox)
    bulk.run()
    replays.finish(outbox.conn, bulk.id)
    outbox.sql("SET session_replication_role = replica")
    with pytest.raises(psycopg.errors.RestrictViolation):
        outbox.sql(change)


def test_a_plan_goes_when_its_replay_is_done_and_not_before(
    outbox: Outbox, relay: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replays, "CHUNKS_PER_TRANSACTION", 2)
    emit_many(outbox, 250)
    end_all(outbox, relay)
    orphan, bulk, stopped = (
        Bulk(outbox, id, select=PUBLISHED) for id in ("orphan", "done", "stop")
    )
    for done in (orphan, bulk):
        done.run()
    replays.stop(outbox.conn, stopped.id)
    outbox.sql("SET session_replication_role = replica")
    with pytest.raises(psycopg.errors.RestrictViolation, match="replay done is not finished"):
        outbox.sql("DELETE FROM outbox.replay_chunk WHERE replay_id = 'done'")
    outbox.sql("SET session_replication_role = origin")
    outbox.sql("UPDATE outbox.replay SET finished_at = now() WHERE id = 'orphan'")  # and died
    replays.finish(outbox.conn, bulk.id)
    assert outbox.sql("SELECT replay_id, count(*) FROM outbox.replay_chunk GROUP BY 1") == [
        ("stop", 5)
    ]
    assert outbox.value("SELECT count(*) FROM outbox.replay_ledger") == 10
    assert bulk.take().outcome == "done"
    assert bulk.progress().replayed + orphan.progress().replayed == 250


def test_the_relays_role_is_enough_and_the_readers_only_reads(
    outbox: Outbox, relay: int, postgres: Postgres
) -> None:
    emit_many(outbox, 60)
    end_all(outbox, relay, "DEAD")
    outbox.emit("never.wanted")
    database = outbox.value("SELECT current_database()")
    users = {role: f"user_{uuid4().hex[:8]}" for role in ("outbox_relay", "outbox_reader")}
    for role, name in users.items():
        outbox.sql(f"CREATE ROLE {name} LOGIN IN ROLE {role}")
    settings = replay_settings()
    with connect(postgres.dsn(database, users["outbox_relay"]), "relay") as conn:
        assert replays.preview(conn, settings)[0] == 60
        replays.plan(conn, settings, replays.begin(conn, settings))
        replays.set_pace(conn, settings.id, 1e6)
        while replays.take(conn, settings.id, "w").outcome != "done":
            pass
        replays.live_age(conn, relay)
        replays.stop(conn, settings.id)
        replays.finish(conn, settings.id)
        fill = replay_settings("fill", action="Backfill")
        replays.plan(conn, fill, replays.begin(conn, fill))
        assert replays.take(conn, "fill", "w").outcome == "done"
    with connect(postgres.dsn(database, users["outbox_reader"]), "reader") as conn:
        assert replays.progress(conn, settings.id).replayed == 60
        for refused in (
            lambda: replays.begin(conn, replay_settings("mine")),
            lambda: replays.take(conn, settings.id, "w"),
            lambda: replays.set_pace(conn, settings.id, 5),
        ):
            with pytest.raises(PermissionDenied, match="outbox_relay"):
                refused()
    for name in users.values():
        outbox.sql(f"DROP ROLE {name}")


def test_a_pooler_in_between_changes_nothing(
    outbox: Outbox, relay: int, pgbouncer: PgBouncer
) -> None:
    emit_many(outbox, 120)
    end_all(outbox, relay, "DEAD")
    settings = replay_settings()
    with connect(pgbouncer.dsn(outbox.value("SELECT current_database()")), "pooled") as conn:
        assert replays.preview(conn, settings)[0] == 120
        replays.plan(conn, settings, replays.begin(conn, settings))
        replays.set_pace(conn, settings.id, 1e6)
        while replays.take(conn, settings.id, "w").outcome != "done":
            pass
        replays.finish(conn, settings.id)
        kept = conn.execute("SHOW synchronous_commit").fetchone()
        assert kept == ("on",)  # nothing stays with a backend that others use
    assert outbox.states() == {"PENDING": 120}


def test_chunks_are_as_large_as_a_twentieth_of_a_second_allows() -> None:
    rates = (1, 1000, 20_000, 1_000_000)
    assert [replays.chunk_rows(rate) for rate in rates] == [50, 50, 1000, 5000]


def test_the_ledger_is_readable_by_a_person(outbox: Outbox, relay: int, cli: Cli) -> None:
    assert cli.json("replays") == {"replays": []}
    emit_many(outbox, 200)
    end_all(outbox, relay, "DEAD")
    bulk = Bulk(outbox, requestedBy="ann")
    Bulk(outbox, "quicker").take()
    bulk.take()
    bulk.take()
    replays.begin(outbox.conn, replay_settings("new"))
    new, quicker, found = cli.json("replays")["replays"]
    assert (found["id"], found["relay"], found["action"]) == (bulk.id, "relay", "Requeue")
    assert (found["matched"], found["replayed"], found["skipped"]) == (200, 50, 50)
    assert (found["state"], found["percent"]) == ("running", 50)
    assert found["skipped_because"] == {"Pending": 50}
    assert (found["requested_by"], quicker["requested_by"]) == ("ann", None)
    assert found["last_chunk_at"] > quicker["last_chunk_at"]
    assert (new["state"], new["percent"], new["last_chunk_at"]) == ("planning", None, None)
    assert "50 (50 Pending)" in cli("replays", "--relay", "relay")
    assert replays.stop(outbox.conn, bulk.id, "EngineFailed: no room")
    assert not replays.stop(outbox.conn, "unknown")
    assert "stopped" in cli("replays")
    assert "50 replayed, 50 skipped: EngineFailed: no room" in cli("audit")
    Bulk(outbox).run()
    replays.finish(outbox.conn, bulk.id)
    found = cli.json("replays")["replays"][2]
    assert (found["state"], found["percent"]) == ("finished", 100)
    assert cli.json("replays", "--relay", "other") == {"replays": []}

"""A bulk replay that is stopped, killed or cut off from its database goes on where it was."""

from pathlib import Path

import pytest

from dev.services import Postgres, wait_until
from fixtures.outbox import Outbox
from fixtures.replays import MAIN, ReplayProcess, StartReplay, make_dead

pytestmark = [pytest.mark.pg, pytest.mark.timeout(300)]

EVENTS = 4000
MODERATE = {"eventsPerSecond": 200, "yieldToLive": False}
"""So that there is a middle to be interrupted in, also where the test is held up for many seconds.
Nothing publishes here, and all of it waits."""
FAST = {"eventsPerSecond": 100_000, "yieldToLive": False}
"""For what is not to be interrupted."""


def midway(outbox: Outbox, replay: ReplayProcess) -> None:
    def some() -> bool:
        assert replay.running
        return bool(
            outbox.value("SELECT coalesce(sum(replayed), 0) >= 500 FROM outbox.replay_ledger")
        )

    wait_until(some, 120, "it is in the middle")


def as_it_starts(replay: ReplayProcess) -> None:
    """The JVM is being started: it is seconds until Python runs."""
    children = Path(f"/proc/{replay.pid}/task/{replay.pid}/children")

    def submits(pid: str) -> bool:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        a_copy_of_the_shell = words[1:2] == [bytes(MAIN.with_name("driver"))]
        return not a_copy_of_the_shell and any(b"ubmit" in word for word in words)

    wait_until(lambda: any(map(submits, children.read_text().split())), 30, "spark-submit runs")


def each_came_back_once(outbox: Outbox) -> None:
    assert outbox.states() == {"PENDING": EVENTS}
    done, chunks = outbox.sql(
        "SELECT sum(replayed), count(*) = (SELECT sum(chunks) FROM outbox.replay)"
        " FROM outbox.replay_ledger"
    )[0]
    assert (done, chunks) == (EVENTS, True)


def test_asked_to_stop_it_stops_cleanly_and_another_attempt_continues(
    outbox: Outbox, start_replay: StartReplay
) -> None:
    make_dead(outbox, outbox.register(), EVENTS)
    first = start_replay(outbox.dsn, rate=MODERATE)
    midway(outbox, first)
    assert first.stop(30) == 143
    report = first.final_report
    assert (report.stage, report.rate, report.seconds_left) == ("Stopped", 0, None)
    done = outbox.value("SELECT sum(replayed) FROM outbox.replay_ledger")
    assert report.replayed == done  # nothing goes on behind its back
    assert 0 < done < EVENTS
    assert outbox.states() == {"PENDING": done, "DEAD": EVENTS - done}

    second = start_replay(outbox.dsn, rate=FAST)
    assert second.wait(180) == 0
    assert second.final_report.replayed == EVENTS
    each_came_back_once(outbox)
    assert outbox.sql("SELECT action FROM outbox.audit ORDER BY id") == [
        ("replay-begin",),
        ("replay-stop",),
        ("replay-end",),
    ]


def test_asked_to_stop_before_it_runs_it_takes_nothing(
    outbox: Outbox, start_replay: StartReplay
) -> None:
    make_dead(outbox, outbox.register(), EVENTS)
    early = start_replay(outbox.dsn, rate=MODERATE)
    as_it_starts(early)
    assert early.stop(60) == 143
    assert early.final_report.stage == "Stopped"
    assert not early.happened("engine-started")
    assert outbox.states() == {"DEAD": EVENTS}
    assert outbox.sql("SELECT action FROM outbox.audit") == []  # nothing had begun


def test_what_a_killed_attempt_left_is_recorded_by_one_that_is_stopped_before_it_begins(
    outbox: Outbox, start_replay: StartReplay
) -> None:
    make_dead(outbox, outbox.register(), EVENTS)
    first = start_replay(outbox.dsn, rate=MODERATE)
    midway(outbox, first)
    first.kill()
    early = start_replay(outbox.dsn, rate=MODERATE)
    as_it_starts(early)
    assert early.stop(60) == 143
    done = outbox.value("SELECT sum(replayed) FROM outbox.replay_ledger")
    assert (early.final_report.stage, early.final_report.replayed) == ("Stopped", done)
    assert outbox.states() == {"PENDING": done, "DEAD": EVENTS - done}
    assert outbox.sql("SELECT action FROM outbox.audit ORDER BY id") == [
        ("replay-begin",),
        ("replay-stop",),
    ]


def test_asked_to_stop_while_the_store_is_away_it_does_not_wait_for_it(
    outbox: Outbox, start_replay: StartReplay
) -> None:
    replay = start_replay("postgresql://nobody@127.0.0.1:1/nowhere")
    wait_until(lambda: replay.happened("unavailable"), 120, "it waits for the store")
    assert replay.get("/readyz")[0] == 503
    assert replay.stop(10) == 143
    assert replay.final_report.stage == "Stopped"


def test_asked_to_stop_while_it_plans_it_gives_up_the_plan(
    outbox: Outbox, start_replay: StartReplay
) -> None:
    make_dead(outbox, outbox.register(), 10)
    blocker = outbox.connect()
    blocker.execute("LOCK TABLE outbox.replay_chunk")
    replay = start_replay(outbox.dsn, master=None)
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    wait_until(lambda: outbox.value(waiting), 60, "it plans")
    assert replay.stop(10) == 143
    blocker.close()
    assert (replay.final_report.stage, replay.final_report.matched) == ("Stopped", None)
    assert outbox.sql("SELECT planned_at FROM outbox.replay") == [(None,)]


def test_ce_31_killed_midway_it_goes_on_where_it_was(
    outbox: Outbox, start_replay: StartReplay
) -> None:
    """From its checkpoint, which is the ledger. Each comes back once, and the rest of the plan."""
    make_dead(outbox, outbox.register(), EVENTS)
    first = start_replay(outbox.dsn, rate=MODERATE)
    midway(outbox, first)
    first.kill()
    assert first.termination_message == ""
    second = start_replay(outbox.dsn, rate=FAST)
    assert second.wait(180) == 0
    assert second.final_report.replayed == EVENTS
    each_came_back_once(outbox)


def test_two_drivers_at_once_do_it_once(outbox: Outbox, start_replay: StartReplay) -> None:
    make_dead(outbox, outbox.register(), EVENTS)
    both = [start_replay(outbox.dsn, rate={**MODERATE, "eventsPerSecond": 500}) for _ in range(2)]
    assert [replay.wait(180) for replay in both] == [0, 0]
    assert [replay.final_report.replayed for replay in both] == [EVENTS, EVENTS]
    each_came_back_once(outbox)


def test_a_database_that_restarts_is_waited_for(
    outbox: Outbox, postgres: Postgres, start_replay: StartReplay
) -> None:
    make_dead(outbox, outbox.register(), EVENTS)
    replay = start_replay(outbox.dsn, rate=MODERATE)
    midway(outbox, replay)
    postgres.kill()
    wait_until(lambda: replay.get("/readyz")[0] == 503, 20, "it notices")
    shown = replay.status()
    assert shown["message"].startswith("trying again")
    assert (shown["rate"], shown.get("secondsLeft")) == (0, None)
    postgres.start()
    again = Outbox(outbox.dsn)
    try:
        assert replay.wait(180) == 0
        assert replay.final_report.replayed == EVENTS
        each_came_back_once(again)
    finally:
        again.close()

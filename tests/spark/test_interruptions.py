"""A bulk replay that is stopped, killed or cut off from its database goes on where it was."""

import os
import signal
from datetime import UTC, datetime
from pathlib import Path

import pytest

from dev.services import Postgres, wait_until
from fixtures.outbox import Outbox
from fixtures.replays import MAIN, ReplayProcess, StartReplay, make_dead
from outbox_core.contract.replay import ReplayReport

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


def reported_so_far(outbox: Outbox, replay: ReplayProcess) -> int:
    """What is done now, once the driver has left a report of it where Kubernetes would find it."""
    done = int(outbox.value("SELECT sum(replayed) FROM outbox.replay_ledger"))

    def reported() -> bool:
        report = ReplayReport.read(replay.termination_message)
        return report is not None and report.replayed >= done

    wait_until(reported, 30, "its figures are in the termination message")
    return done


def jvm(replay: ReplayProcess) -> int:
    def is_it(pid: int) -> bool:
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            return os.getpgid(pid) == replay.pid and command[0].endswith(b"/java")
        except OSError:  # it has just ended, so it is another
            return False

    (found,) = filter(is_it, (int(p.name) for p in Path("/proc").iterdir() if p.name.isdigit()))
    return found


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
    assert report.figures_as_of is None
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
    seen = reported_so_far(outbox, first)
    first.kill()
    left = first.final_report
    done = outbox.value("SELECT sum(replayed) FROM outbox.replay_ledger")
    assert (left.stage, left.matched) == ("Running", EVENTS)
    assert seen <= left.replayed <= done
    assert left.figures_as_of is not None  # so nobody takes them for the last
    assert left.figures_as_of < datetime.now(UTC)
    second = start_replay(outbox.dsn, rate=FAST)
    assert second.wait(180) == 0
    assert second.final_report.replayed == EVENTS
    each_came_back_once(outbox)


def test_killed_while_it_stops_it_leaves_its_figures_and_that_it_was_asked_to_stop(
    outbox: Outbox, start_replay: StartReplay
) -> None:
    make_dead(outbox, outbox.register(), EVENTS)
    replay = start_replay(outbox.dsn, rate=MODERATE)
    midway(outbox, replay)
    seen = reported_so_far(outbox, replay)
    os.kill(jvm(replay), signal.SIGSTOP)  # on a busy machine Spark takes long to stop
    replay.signal(signal.SIGTERM)

    def stops() -> bool:
        report = ReplayReport.read(replay.termination_message)
        return report is not None and report.stage == "Stopped"

    wait_until(stops, 30, "it reports at once that it stops")
    replay.kill()
    left = replay.final_report
    assert (left.stage, left.matched, left.rate) == ("Stopped", EVENTS, 0)
    assert left.replayed >= seen
    assert left.figures_as_of is not None


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

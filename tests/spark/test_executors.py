"""
Executors as processes of their own: lost ones, twins of tasks, and a relay that publishes beside.

Spark's own small cluster on this machine. What only pods can show is in tests/e2e.
"""

import os
import signal
from collections import Counter
from pathlib import Path

import pytest

from dev.services import wait_until
from fixtures.outbox import Holder, Outbox
from fixtures.relays import Broker, RunRelay
from fixtures.replays import MAIN, ReplayProcess, StartReplay, make_dead

pytestmark = [pytest.mark.pg, pytest.mark.slow, pytest.mark.timeout(400)]

EVENTS = 6000
"""Twenty seconds: the middle does not pass by while a test is held up."""
CLUSTER = "local-cluster[2,2,512]"
TWINS = {
    "spark.executor.cores": "2",
    "spark.executor.memory": "512m",
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.task.duration.threshold": "500ms",  # every task is soon taken for slow
}


def the_busiest_executor(outbox: Outbox) -> int:
    """The JVM above the Python process that took most chunks."""
    worker = outbox.value(
        "SELECT worker FROM outbox.replay_ledger GROUP BY worker ORDER BY count(*) DESC LIMIT 1"
    )
    pid = int(worker.rpartition(".")[2])
    while "CoarseGrainedExecutorBackend" not in Path(f"/proc/{pid}/cmdline").read_text():
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return pid


def connections(outbox: Outbox) -> int:
    """Of all tasks."""
    found = outbox.value(
        "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'outbox-replay %%'"
        " AND application_name NOT LIKE '%% driver'"
    )
    return int(found)


def driver_itself(replay: ReplayProcess) -> int:
    """The Python process that Kubernetes would signal: executors are in other pods."""

    def is_it(pid: int) -> bool:
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            return os.getpgid(pid) == replay.pid and command[1:2] == [bytes(MAIN)]
        except OSError:  # it has just ended, so it is another
            return False

    (found,) = filter(is_it, (int(p.name) for p in Path("/proc").iterdir() if p.name.isdigit()))
    return found


def test_asked_to_stop_it_counts_what_executors_did_until_they_stopped(
    outbox: Outbox, start_replay: StartReplay
) -> None:
    make_dead(outbox, outbox.register(), EVENTS)
    replay = start_replay(
        outbox.dsn,
        master="local-cluster[2,1,512]",
        conf={"spark.executor.memory": "512m"},
        rate={"eventsPerSecond": 300, "yieldToLive": False},
    )
    begun = "SELECT count(*) > 9 FROM outbox.replay_ledger"
    wait_until(lambda: replay.running and outbox.value(begun), 180, "executors work")
    os.kill(driver_itself(replay), signal.SIGTERM)
    assert replay.wait(60) == 143
    report = replay.final_report
    assert (report.stage, report.figures_as_of) == ("Stopped", None)
    wait_until(lambda: connections(outbox) == 0, 30, "no executor is left")
    done = outbox.value("SELECT sum(replayed) FROM outbox.replay_ledger")
    assert report.replayed == done < EVENTS


def test_lost_executors_and_twins_of_tasks_change_nothing_for_a_relay_that_orders(
    outbox: Outbox, run_relay: RunRelay, start_replay: StartReplay
) -> None:
    relay = outbox.register(ordering="Key")
    holder = Holder(outbox, relay)
    make_dead(outbox, relay, EVENTS, keys=40, holder=holder)
    holder.expire()
    broker = Broker()
    run_relay(outbox.dsn, broker, ordering="Key", lease="60s")
    replay = start_replay(
        outbox.dsn,
        master=CLUSTER,
        conf=TWINS,
        connections=4,  # two tasks, and two twins
        rate={"eventsPerSecond": 300, "yieldToLive": False},
        log={"level": "debug"},
    )

    def done() -> int:
        assert replay.running
        return int(outbox.value("SELECT coalesce(sum(replayed), 0) FROM outbox.replay_ledger"))

    def looked() -> int:
        seen.append(connections(outbox))
        return done()

    seen: list[int] = []
    wait_until(lambda: looked() > EVENTS / 4, 180, "a quarter is back")
    wait_until(lambda: looked() and max(seen) >= 2, 60, "two tasks at least work")
    assert max(seen) <= 4
    os.kill(the_busiest_executor(outbox), signal.SIGKILL)
    wait_until(lambda: done() > EVENTS / 2, 60, "it goes on")
    assert replay.wait(180) == 0
    assert replay.final_report.replayed == EVENTS
    wait_until(lambda: outbox.states() == {"PUBLISHED": EVENTS}, 60, "all are out again")

    times = Counter(claim.seq for claim in broker.accepted)
    assert (len(times), set(times.values())) == (EVENTS, {1})
    last: dict[str, int] = {}
    for claim in broker.accepted:
        assert claim.ordering_key is not None
        assert last.get(claim.ordering_key, 0) < claim.seq
        last[claim.ordering_key] = claim.seq
    log = replay.log.read_text()
    assert "speculatable" in log
    assert "Lost executor" in log
    # The one that was killed, and at least another.
    assert outbox.value("SELECT count(DISTINCT worker) FROM outbox.replay_ledger") > 1

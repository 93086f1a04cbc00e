"""
Executors as processes of their own: lost ones, twins of tasks, and a relay that publishes beside.

Spark's own small cluster on this machine. What only pods can show is in tests/e2e.
"""

import os
import signal
from collections import Counter
from pathlib import Path

import pytest

from fixtures.outbox import Holder, Outbox
from fixtures.relays import Broker, RunRelay
from fixtures.replays import ReplayProcess, StartReplay, make_dead
from services import wait_until

pytestmark = [pytest.mark.pg, pytest.mark.slow, pytest.mark.timeout(400)]

EVENTS = 3000
CLUSTER = "local-cluster[2,2,512]"
TWINS = {
    "spark.executor.cores": "2",
    "spark.executor.memory": "512m",
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.task.duration.threshold": "500ms",  # every task is soon taken for slow
}


def executors(replay: ReplayProcess) -> list[int]:
    """The JVMs among its processes that do the work."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command = (entry / "cmdline").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        of_ours = "CoarseGrainedExecutorBackend" in command and "bash" not in command
        if of_ours and os.getpgid(int(entry.name)) == replay.pid:
            found.append(int(entry.name))
    return found


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
        connections=2,
        rate={"eventsPerSecond": 300, "yieldToLive": False},
        log={"level": "debug"},
    )

    def done() -> int:
        assert replay.running
        return int(outbox.value("SELECT coalesce(sum(replayed), 0) FROM outbox.replay_ledger"))

    wait_until(lambda: done() > EVENTS / 4, 180, "a quarter is back")
    os.kill(executors(replay)[0], signal.SIGKILL)
    wait_until(lambda: done() > EVENTS / 2, 60, "it goes on")
    assert replay.wait(180) == 0
    assert replay.last_words.replayed == EVENTS
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
    workers = outbox.value("SELECT count(DISTINCT worker) FROM outbox.replay_ledger")
    assert workers > 2  # more than there are tasks: twins, or those who came after

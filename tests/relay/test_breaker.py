"""The breaker as people see it: what readiness shows while the broker is away, and afterwards."""

import threading

import pytest

from dev.services import wait_until
from fixtures.losing import LosingProxy, Loss, Plan
from fixtures.outbox import Holder, Outbox
from fixtures.relays import Broker, RunRelay
from fixtures.wire import Trip
from outbox_core.model.attempt import Acked, Error, ErrorClass, Refused
from outbox_relay.worker.breaker import BreakerState

pytestmark = pytest.mark.pg


def test_a_relay_with_nothing_to_do_is_ready_again_when_the_broker_answers(
    outbox: Outbox, run_relay: RunRelay
) -> None:
    """Nothing is due, so there is no trial: the probe alone shows it."""
    broker = Broker()
    broker.fails_probes = "nobody is there"
    broker.answer = lambda _: Refused(Error.of(ErrorClass.OUTAGE, "TEST", "no answer"))
    outbox.register()
    outbox.emit()
    relay = run_relay(outbox.dsn, broker, retry={"baseDelay": "5m", "maxDelay": "5m"})
    health = relay.relay.health
    wait_until(lambda: set(health.troubles) == {"broker"}, 10, "it shows that the broker is away")
    assert health.troubles["broker"] == "nobody is there"
    broker.fails_probes = None
    wait_until(lambda: not health.troubles, 10, "it is ready")
    assert len(broker.calls) == 1


class Cutting(Plan):
    """Whatever these send, for as long as it is said."""

    who = ""
    cuts = 0

    def loss_at(self, trip: Trip) -> Loss | None:
        if not self.who or self.who not in trip.application:
            return None
        self.cuts += 1
        return Loss.CUT_BEFORE


def test_a_trial_that_does_not_happen_is_given_back(outbox: Outbox, run_relay: RunRelay) -> None:
    """A worker without lanes has it, and cannot write down how its last batch ended."""
    relay = outbox.register(ordering="Key")
    outbox.sql(
        "INSERT INTO outbox.event (event_type, payload, ordering_key)"
        " SELECT 'a.b', '', 'k' || i FROM generate_series(1, 400) i"
    )
    broker, plan = Broker(), Cutting()
    broker.fails_probes = "down"
    down = Refused(Error.of(ErrorClass.OUTAGE, "TEST", "down"))
    broker.answer = lambda c: down if len(broker.calls) > 3 else Acked(f"t[0]@{c.seq}")
    gates = {"worker-0": threading.Event(), "worker-1": threading.Event()}
    waiting: set[str] = set()

    def before(batch: object) -> None:
        if len(broker.calls) > 3:
            waiting.add(threading.current_thread().name)
            gates[threading.current_thread().name].wait(30)

    broker.before = before
    with LosingProxy(outbox.dsn, plan) as proxy:
        local = run_relay(
            proxy.dsn, broker, ordering="Key", workers=2, batchSize=20, lease="2s"
        )  # fmt: skip
        context = local.relay.context
        try:
            wait_until(lambda: len(waiting) == 2, 20, "both workers publish")
            plan.who = "worker 1"
            gates["worker-1"].set()
            wait_until(lambda: context.breaker.state is BreakerState.OPEN, 10, "it opens")
            gates["worker-0"].set()
            # Another process has our lanes: we were silent for too long.
            outbox.sql("UPDATE outbox.lane SET token = NULL")
            outbox.sql("DELETE FROM outbox.holder")
            outbox.end_leases()
            thief = Holder(outbox, relay, 0, owner="thief")
            outbox.sql("UPDATE outbox.lane SET token = %s", thief.token)
            wait_until(lambda: not context.crew.lanes, 10, "no lanes are left")
            broker.fails_probes = None
            broker.answer = lambda c: Acked(f"t[0]@{c.seq}")
            wait_until(lambda: context.breaker.state is BreakerState.TRIAL, 10, "a trial")
            cuts = plan.cuts
            wait_until(lambda: plan.cuts >= cuts + 2, 20, "the worker has tried again")
            plan.who = ""
            thief.lanes_of_relay.leave(thief.token)
            wait_until(lambda: outbox.states() == {"PUBLISHED": 400}, 20, "all published")
        finally:
            plan.who = ""
            for gate in gates.values():
                gate.set()
            local.stop()

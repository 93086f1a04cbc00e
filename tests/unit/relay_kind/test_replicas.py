"""How many pods: who decides, and that nobody does where nothing may be changed."""

from typing import Any

import pytest

from fixtures.made_resources import outbox_relay
from fixtures.made_seen import NOW, deployment, leaving, pod, report, retiring, seen
from outbox_operator.relay.decide.autoscaling import ScaleMemory
from outbox_operator.relay.decide.replicas import decide_replicas
from outbox_operator.relay.spec.resource import OutboxRelay
from outbox_operator.shared.pausing import RECONCILE, what_pauses

SCALED: dict[str, Any] = {"autoscaling": {"minReplicas": 2, "maxReplicas": 5}}
MEMORY = ScaleMemory(high_since=NOW)


def paused(relay: OutboxRelay) -> OutboxRelay:
    meta = relay.metadata.model_copy(update={"annotations": {RECONCILE: "paused"}})
    return relay.model_copy(update={"metadata": meta})


@pytest.mark.parametrize(
    ("relay", "expected"),
    [
        (outbox_relay(replicas=3), 3),
        (outbox_relay(replicas=3, paused=True), 1),
        (retiring(replicas=3), 0),
        (leaving(outbox_relay(replicas=3), "other/one"), 4),
    ],
)
def test_without_autoscaling_the_spec_decides_unless_it_is_being_deleted(
    relay: OutboxRelay, expected: int
) -> None:
    found = decide_replicas(relay, seen(deployment=deployment(4)), MEMORY, NOW)
    assert (found.wanted, found.current, found.scale) == (expected, 4, None)


def test_a_new_relay_begins_with_the_fewest() -> None:
    found = decide_replicas(outbox_relay(**SCALED), seen(), MEMORY, NOW)
    assert (found.wanted, found.current, found.memory) == (2, None, MEMORY)


def test_the_autoscaler_decides_where_it_is_asked_to() -> None:
    around = seen(pod(report=report()), deployment=deployment(4))
    found = decide_replicas(outbox_relay(**SCALED), around, ScaleMemory(), NOW)
    assert found.scale is not None
    assert (found.wanted, found.memory) == (found.scale.replicas, found.scale.memory)


def test_nothing_is_scaled_while_reconciliation_is_paused() -> None:
    relay = paused(outbox_relay(**SCALED))
    around = seen(deployment=deployment(9), restraint=what_pauses(relay))
    found = decide_replicas(relay, around, MEMORY, NOW)
    assert (found.wanted, found.scale, found.memory) == (9, None, MEMORY)


def test_what_the_autoscaler_remembers_is_gone_when_the_spec_decides() -> None:
    found = decide_replicas(outbox_relay(), seen(deployment=deployment()), MEMORY, NOW)
    assert found.memory == ScaleMemory()

"""
How many pods a relay should have now: the number in the spec, the autoscaler's decision, or the
current number while nothing may change it.

Called by the reconciler, once per reconcile.
"""

from dataclasses import dataclass
from datetime import datetime

from outbox_operator.relay.decide.autoscaling import Scale, ScaleMemory, scale
from outbox_operator.relay.decide.backlog import load_of
from outbox_operator.relay.decide.children import fixed_replicas
from outbox_operator.relay.decide.deletion import asked_replicas, is_leaving, is_retiring
from outbox_operator.relay.decide.rollout import count_pods
from outbox_operator.relay.seen import RelaySeen
from outbox_operator.relay.spec.resource import OutboxRelay


@dataclass(frozen=True)
class Replicas:
    wanted: int
    asked: int | None
    """The number that the Deployment currently requests; None: it does not exist."""
    scale: Scale | None
    """The autoscaler's decision, if it decides."""
    memory: ScaleMemory
    """For the next decision."""


def decide_replicas(
    relay: OutboxRelay, seen: RelaySeen, memory: ScaleMemory, now: datetime
) -> Replicas:
    asked = asked_replicas(relay, seen)
    if is_leaving(relay) and not is_retiring(relay):
        return Replicas(asked or 0, asked, None, memory)  # the garbage collector removes them
    if asked is not None and seen.restraint is not None and seen.restraint.holds:
        return Replicas(asked, asked, None, memory)  # the operator writes no child now
    fixed = fixed_replicas(relay)
    if fixed is not None:
        return Replicas(fixed, asked, None, ScaleMemory())
    assert relay.spec.autoscaling is not None
    if asked is None:
        return Replicas(relay.spec.autoscaling.min_replicas, asked, None, memory)
    ready = count_pods(relay, seen, asked).ready
    decision = scale(relay.spec.autoscaling, asked, ready, load_of(seen.reports), memory, now)
    return Replicas(decision.replicas, asked, decision, decision.memory)

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
from outbox_operator.relay.decide.deletion import current_replicas, is_being_deleted, is_retiring
from outbox_operator.relay.decide.rollout import count_pods
from outbox_operator.relay.seen import RelaySeen
from outbox_operator.relay.spec.resource import OutboxRelay


@dataclass(frozen=True)
class Replicas:
    wanted: int
    current: int | None
    """The number that the Deployment currently requests; None: it does not exist."""
    scale: Scale | None
    """The autoscaler's decision, if it decides."""
    memory: ScaleMemory
    """For the next decision."""


def decide_replicas(
    relay: OutboxRelay, seen: RelaySeen, memory: ScaleMemory, now: datetime
) -> Replicas:
    current = current_replicas(relay, seen)
    if is_being_deleted(relay) and not is_retiring(relay):
        return Replicas(current or 0, current, None, memory)  # the garbage collector removes them
    if current is not None and seen.restraint is not None and seen.restraint.blocks_writes:
        return Replicas(current, current, None, memory)  # the operator writes no child now
    fixed = fixed_replicas(relay)
    if fixed is not None:
        return Replicas(fixed, current, None, ScaleMemory())
    assert relay.spec.autoscaling is not None
    if current is None:
        return Replicas(relay.spec.autoscaling.min_replicas, current, None, memory)
    ready = count_pods(relay, seen, current).ready
    decision = scale(relay.spec.autoscaling, current, ready, load_of(seen.reports), memory, now)
    return Replicas(decision.replicas, current, decision, decision.memory)

"""
Reaping: whether the CronJob is needed. Every half lease, relays themselves take back what dead ones
had claimed; the CronJob does it only while no relay works.

Called by the reconciler. The CronJob's current state is part of the decision, so that pods that
come and go do not switch it on and off.
"""

from datetime import datetime, timedelta

from outbox_operator.kinds import RelayCondition
from outbox_operator.relay.decide.rollout import count_pods, is_complete
from outbox_operator.relay.seen import RelaySeen
from outbox_operator.relay.spec.resource import OutboxRelay
from outbox_operator.shared.names import child_name

SOON_BACK_TIME = timedelta(minutes=1)
"""How long no pod may be ready before the CronJob takes over. It runs once a minute at most, so a
pod that is back within this time is no slower."""


def should_suspend_reaper(
    relay: OutboxRelay, seen: RelaySeen, replicas: int, now: datetime
) -> bool:
    suspended = is_reaper_suspended(relay, seen)
    counts = count_pods(relay, seen, replicas)
    if counts.ready:
        return suspended or is_complete(seen, counts)
    return suspended and now - _none_since(relay, now) < SOON_BACK_TIME


def is_reaper_suspended(relay: OutboxRelay, seen: RelaySeen) -> bool:
    live = seen.child("CronJob", child_name(relay, "reaper")) or {}
    return bool(live.get("spec", {}).get("suspend"))


def _none_since(relay: OutboxRelay, now: datetime) -> datetime:
    """Since when no pod is ready, according to the last status; now, if it does not show that
    yet."""
    ready = next((c for c in relay.status.conditions if c.type == RelayCondition.READY), None)
    return now if ready is None or ready.status == "True" else ready.last_transition_time

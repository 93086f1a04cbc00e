"""When to reconcile a replay again, and how long a finished one stays."""

from datetime import datetime, timedelta

from outbox_operator.replay.decide.children import ReplayChildren
from outbox_operator.replay.decide.gitops import why_it_stays
from outbox_operator.replay.decide.step import FINISHED, Step, Suspend, TryAgain
from outbox_operator.replay.seen import ReplaySeen
from outbox_operator.replay.spec.resource import OutboxReplay, ReplayStatus


def seconds_to_next_reconcile(
    replay: OutboxReplay,
    seen: ReplaySeen,
    step: Step,
    children: ReplayChildren,
    status: ReplayStatus,
    interval: float,
    now: datetime,
) -> float | None:
    """`interval`: the seconds between two reports of a driver. None: only when something
    changes."""
    if status.phase in FINISHED:
        return 0.0 if why_it_stays(replay) else seconds_to_live(replay, status, now)
    if isinstance(step, Suspend):
        # As long as a driver exists, its last report may not have been read yet.
        return interval if children.unwanted or seen.drivers else None
    if isinstance(step, TryAgain) and replay.spec.suspend:
        return 0.0
    at = status.next_attempt_time
    if at is None or at <= now:
        return interval
    return min(interval, (at - now).total_seconds())


def seconds_to_live(replay: OutboxReplay, status: ReplayStatus, now: datetime) -> float | None:
    """Seconds until a finished replay is deleted; None: it stays."""
    ttl, end = replay.spec.ttl_seconds_after_finished, status.completion_time
    if ttl is None or end is None:
        return None
    return max(0.0, (end + timedelta(seconds=ttl) - now).total_seconds())

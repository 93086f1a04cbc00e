"""When to reconcile a relay again: every reconcile asks its pods for their report."""

from outbox_operator.relay.seen import RelaySeen
from outbox_operator.relay.spec.resource import RelayStatus
from outbox_operator.settings import OperatorSettings

LONGEST_REFUSED_SECONDS = 60.0
"""A child that the API server refused is tried again after this time at the latest."""


def seconds_to_next_reconcile(
    settings: OperatorSettings, seen: RelaySeen, status: RelayStatus, replicas: int, refused: int
) -> float:
    """`refused`: how many times in a row the API server refused a child."""
    interval = settings.interval.total_seconds()
    if refused:  # it will most likely be refused again: a person must act
        return max(interval, min(interval * 2.0 ** min(refused - 1, 10), LONGEST_REFUSED_SECONDS))
    calm = is_calm(seen, status, replicas)
    return settings.idle_interval.total_seconds() if calm else interval


def is_calm(seen: RelaySeen, status: RelayStatus, replicas: int) -> bool:
    """All pods are ready and report that nothing waits, or none is requested."""
    backlog = status.backlog
    reported = bool(seen.reports) and backlog is not None and backlog.pending == 0
    return (reported or replicas == 0) and status.ready_replicas == replicas

"""
The status of a relay: five conditions and the figures.

Judged from what was seen and from the status before it: a condition keeps its time while it stays,
and what is no longer reported is kept and called old.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from outbox_operator.children.names import child_name, selector
from outbox_operator.decide import backlog as figures
from outbox_operator.decide.autoscaling import Scale
from outbox_operator.decide.checks import Finding, first_finding
from outbox_operator.decide.deletion import is_leaving, is_retiring, leaving_finding
from outbox_operator.decide.silence import CAUSE
from outbox_operator.resources.conditions import (
    Judged,
    Reason,
    RelayCondition,
    as_conditions,
)
from outbox_operator.resources.relay import OutboxRelay, RelayStatus
from outbox_operator.seen import Seen

RENEWED = timedelta(minutes=2)
"""How old the time of the figures may become while pods report the same. Not written at every
look: five hundred idle relays so cost four small writes a second."""
STALE = timedelta(minutes=3)
"""How old figures may be before they are called so, while there is a pod that could report: that it
missed a look, or two, says nothing. Above RENEWED by two looks at an idle relay."""


@dataclass(frozen=True)
class Counts:
    """Of pods, as the Deployment tells them."""

    asked: int
    existing: int
    updated: int
    ready: int
    current: bool
    """The Deployment's controller has seen its latest version."""


def decide_status(
    relay: OutboxRelay, seen: Seen, replicas: int, scale: Scale | None, now: datetime
) -> RelayStatus:
    counts = count_pods(relay, seen, replicas)
    finding = (leaving_finding if is_leaving(relay) else first_finding)(relay, seen, now)
    conditions = (
        _ready(relay, counts, finding),
        _progressing(relay, seen, counts, scale),
        _degraded(finding, scale),
        _backlog_healthy(relay, seen, now),
        _paused(relay),
    )
    reports = seen.reports
    before = relay.status
    backlog = figures.backlog_of(reports)
    made = RelayStatus(
        observed_generation=relay.metadata.generation,
        replicas=counts.existing,
        ready_replicas=counts.ready,
        selector=",".join(f"{k}={v}" for k, v in selector(relay, "relay").items()),
        relay_name=relay.relay_name,
        conditions=as_conditions(
            conditions, relay.status.conditions, relay.metadata.generation, now
        ),
    )
    if not reports or backlog is None:
        # What was known last is better than nothing: BacklogHealthy says if it is old.
        missed = ("throughput",) if is_a_miss(relay, seen, now) else ()
        names = ("backlog", "lag", "version", "top_errors", "observed_at", *missed)
        return made.model_copy(update={name: getattr(before, name) for name in names})
    told = made.model_copy(
        update={
            "version": ", ".join(sorted({r.version for r in reports})),
            "backlog": backlog,
            "lag": figures.lag_of(backlog),
            "throughput": figures.throughput_of(reports),
            "top_errors": figures.errors_of(reports),
        }
    )
    same = all(
        getattr(told, name) == getattr(before, name)
        for name in ("backlog", "throughput", "top_errors", "version")
    )
    at = before.observed_at
    if at is None or not same or now - at >= RENEWED:
        at = now.replace(microsecond=0)
    return told.model_copy(update={"observed_at": at})


def is_a_miss(relay: OutboxRelay, seen: Seen, now: datetime) -> bool:
    """Of pods that do not report: whether they may be expected to at the next look."""
    at = relay.status.observed_at
    could = any(p.ready and not p.leaving for p in seen.pods)
    return could and at is not None and now - at < STALE


def count_pods(relay: OutboxRelay, seen: Seen, replicas: int) -> Counts:
    live = seen.child("Deployment", child_name(relay, "relay"))
    if live is None:
        return Counts(replicas, 0, 0, 0, current=False)
    status = live.get("status") or {}
    return Counts(
        asked=replicas,
        existing=status.get("replicas", 0),
        updated=status.get("updatedReplicas", 0),
        ready=status.get("readyReplicas", 0),
        current=status.get("observedGeneration", 0) >= live["metadata"].get("generation", 0)
        and live["spec"].get("replicas", 1) == replicas,
    )


# The conditions ------------------------------------------------------------------------------


def _ready(relay: OutboxRelay, counts: Counts, finding: Finding | None) -> Judged:
    kind = RelayCondition.READY
    if is_leaving(relay):
        return kind, "False", Reason.DELETING, _waits_for(relay)
    if counts.asked == 0:
        return kind, "False", Reason.SCALED_TO_ZERO, "no pods are asked for: nothing is published"
    if counts.ready:
        watching = "; it watches, and publishes nothing" if relay.spec.paused else ""
        return (
            kind,
            "True",
            Reason.AS_EXPECTED,
            f"{counts.ready} of {counts.asked} pods are ready{watching}",
        )
    if finding:
        return kind, "False", finding.reason, finding.message
    return kind, "False", Reason.PODS_NOT_READY, "no pod is ready yet"


def _waits_for(relay: OutboxRelay) -> str:
    held = ", ".join(relay.metadata.finalizers)
    return f"being deleted; it stays until its finalizers are removed: {held}"


def _progressing(relay: OutboxRelay, seen: Seen, counts: Counts, scale: Scale | None) -> Judged:
    kind = RelayCondition.PROGRESSING
    if is_leaving(relay):
        gone = "pods give back what they hold, and go"
        message = gone if is_retiring(relay) else "pods go with the resource"
        return kind, "True", Reason.DELETING, message
    if counts.current and counts.updated == counts.existing == counts.ready == counts.asked:
        if scale is not None:
            return kind, "False", scale.reason, scale.message
        return kind, "False", Reason.AS_EXPECTED, "all is as it was asked for"
    if any(p.migrating and not p.leaving for p in seen.pods):
        return kind, "True", Reason.MIGRATING, "a pod brings the schema up to date before it starts"
    if counts.current and counts.updated == counts.existing:
        return kind, "True", Reason.SCALING, f"{counts.ready} of {counts.asked} pods are ready"
    return kind, "True", Reason.ROLLING_OUT, f"{counts.updated} of {counts.asked} pods are new"


def _degraded(finding: Finding | None, scale: Scale | None) -> Judged:
    kind = RelayCondition.DEGRADED
    if finding:
        return kind, "True", finding.reason, finding.message
    return kind, "False", Reason.AS_EXPECTED, "nothing is known to be wrong"


def _backlog_healthy(relay: OutboxRelay, seen: Seen, now: datetime) -> Judged:
    kind = RelayCondition.BACKLOG_HEALTHY
    reports = seen.reports
    backlog = figures.backlog_of(reports)
    if backlog is None:
        since = relay.status.observed_at
        was = next((c for c in relay.status.conditions if c.type == kind), None)
        if was is not None and is_a_miss(relay, seen, now):
            return kind, was.status, was.reason, was.message
        ready = [p for p in seen.pods if p.ready and not p.leaving]
        why = f": {CAUSE}" if ready and not reports else ""
        if since is None:
            return kind, "Unknown", Reason.NO_REPORT, f"no pod has reported yet{why}"
        message = f"no pod reports; what is shown is as of {since:%Y-%m-%d %H:%M:%S} UTC{why}"
        return kind, "Unknown", Reason.REPORT_STALE, message
    found = figures.unhealthy(relay, backlog, figures.errors_of(reports), relay.status)
    if found:
        return kind, "False", found.reason, found.message
    return kind, "True", Reason.AS_EXPECTED, "events leave as they come"


def _paused(relay: OutboxRelay) -> Judged:
    if relay.spec.paused:
        message = "nothing is published, events are kept; to resume set spec.paused to false"
        return RelayCondition.PAUSED, "True", Reason.PAUSED, message
    return RelayCondition.PAUSED, "False", Reason.NOT_PAUSED, ""


def decide_invalid(
    relay_status: RelayStatus, generation: int, why: str, now: datetime
) -> RelayStatus:
    """Of a spec that the schema let through and we cannot use: what runs is left as it is."""
    message = f"{why}. What runs goes on as it was; correct the spec"
    judged = [
        (kind, status, Reason.SPEC_INVALID, message)
        for kind, status in ((RelayCondition.READY, "False"), (RelayCondition.DEGRADED, "True"))
    ]
    made = as_conditions(judged, relay_status.conditions, generation, now)
    kept = [c for c in relay_status.conditions if c.type not in {m.type for m in made}]
    return relay_status.model_copy(
        update={
            "conditions": (*made, *kept),
            "observed_generation": generation,
        }
    )

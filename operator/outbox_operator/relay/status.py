"""
The status of a relay: seven conditions and the figures.

Judged from what was seen and from the last status: a condition keeps its time while its status
stays, and figures that are no longer reported are kept and marked as old.
"""

from datetime import datetime, timedelta

from outbox_operator.kinds import RelayCondition
from outbox_operator.relay.decide import backlog as figures
from outbox_operator.relay.decide.autoscaling import Scale
from outbox_operator.relay.decide.checks import first_finding
from outbox_operator.relay.decide.deletion import deletion_finding, is_being_deleted, is_retiring
from outbox_operator.relay.decide.egress import open_egress
from outbox_operator.relay.decide.rollout import Counts, count_pods, is_done, obstacle, rolled_out
from outbox_operator.relay.seen import RelaySeen
from outbox_operator.relay.spec.resource import OutboxRelay, RelayStatus, RolledOut
from outbox_operator.shared.checks import Finding
from outbox_operator.shared.conditions import Condition, Judged, as_conditions
from outbox_operator.shared.names import selector
from outbox_operator.shared.reasons import Reason
from outbox_operator.shared.seen import Ends, Restraint
from outbox_operator.shared.silence import CAUSE

RENEWED_AFTER = timedelta(minutes=10)
"""How old the time of the figures may become while pods report the same. It is not written at every
reconcile: each write costs the operator more than asking the pods for half of this time, and five
hundred idle relays together one small write a second."""
STALE_AFTER = timedelta(minutes=3)
"""How old the last report may be before figures count as stale, while there is a pod that could
report: one or two missed reports mean nothing."""
OF_A_CHANGE = (RelayCondition.PROGRESSING, RelayCondition.RECONCILING, RelayCondition.STALLED)
"""Conditions about the change that is being carried out."""


def decide_status(
    relay: OutboxRelay, seen: RelaySeen, replicas: int, scale: Scale | None, now: datetime
) -> RelayStatus:
    counts = count_pods(relay, seen, replicas)
    finding = (deletion_finding if is_being_deleted(relay) else first_finding)(relay, seen, now)
    done = rolled_out(relay, seen, counts)
    progressing = _progressing(relay, seen, counts, scale)
    changing = is_being_deleted(relay) or not is_done(relay, seen, counts, done)
    stuck = finding if is_being_deleted(relay) else obstacle(relay, seen, counts, now)
    conditions = (
        _ready(relay, counts, finding, done),
        progressing,
        _degraded(relay, finding),
        _backlog_healthy(relay, seen, now),
        _paused(relay),
        *_change(progressing if changing else None, stuck if changing else None),
    )
    reports = seen.reports
    before = relay.status
    backlog = figures.backlog_of(reports)
    made = RelayStatus(
        observed_generation=relay.metadata.generation,
        replicas=counts.existing,
        ready_replicas=counts.ready,
        pods=f"{counts.ready}/{counts.requested}",
        rolled_out=done,
        selector=",".join(f"{k}={v}" for k, v in selector(relay, "relay").items()),
        relay_name=relay.relay_name,
        conditions=_with_ready_generation(
            as_conditions(conditions, before.conditions, relay.metadata.generation, now), done
        ),
    )
    if not reports or backlog is None:
        # Old figures are better than none: BacklogHealthy shows that they are old.
        expected = expects_report(relay, seen, now)
        missed = ("throughput", "observed_at") if expected else ()
        names = ("backlog", "lag", "version", "top_errors", *missed)
        kept = {name: getattr(before, name) for name in names}
        return made.model_copy(update={"observed_at": last_report(relay, seen), **kept})
    fresh = made.model_copy(
        update={
            "version": ", ".join(sorted({r.version for r in reports})),
            "backlog": backlog,
            "lag": figures.lag_of(backlog),
            "throughput": figures.throughput_of(reports),
            "top_errors": figures.errors_of(reports),
        }
    )
    same = all(
        getattr(fresh, name) == getattr(before, name)
        for name in ("backlog", "throughput", "top_errors", "version")
    )
    at = before.observed_at
    if at is None or not same or now - at >= RENEWED_AFTER:
        at = now.replace(microsecond=0)
    return fresh.model_copy(update={"observed_at": at})


def _with_ready_generation(
    conditions: tuple[Condition, ...], done: RolledOut | None
) -> tuple[Condition, ...]:
    """Ready describes the existing pods, which may be of an older spec, so it gets the generation
    that they were made for. A person who waits for Ready after a change (`kubectl wait` compares
    generations) then waits for the change too."""
    generation = done.generation if done else 0
    return tuple(
        c.model_copy(update={"observed_generation": generation})
        if (c.type, c.status) == (RelayCondition.READY, "True")
        else c
        for c in conditions
    )


def last_report(relay: OutboxRelay, seen: RelaySeen) -> datetime | None:
    """When a pod last reported, as far as the status or this process knows."""
    known = [at for at in (relay.status.observed_at, seen.last_report) if at is not None]
    return max(known).replace(microsecond=0) if known else None


def expects_report(relay: OutboxRelay, seen: RelaySeen, now: datetime) -> bool:
    """No pod reports now, but one is expected to at the next reconcile. A new process first asks
    for as long as an old one would: what reported to that one is not in the status."""
    at = last_report(relay, seen)
    could = any(p.ready and not p.terminating for p in seen.pods)
    return could and at is not None and now - max(at, seen.asked_since or at) < STALE_AFTER


# The conditions ------------------------------------------------------------------------------


def _ready(
    relay: OutboxRelay, counts: Counts, finding: Finding | None, done: RolledOut | None
) -> Judged:
    kind = RelayCondition.READY
    if is_being_deleted(relay):
        return kind, "False", Reason.DELETING, _waits_for(relay)
    if counts.requested == 0:
        return kind, "False", Reason.SCALED_TO_ZERO, "no pods are requested: nothing is published"
    if counts.ready:
        message = f"{counts.ready} of {counts.requested} pods are ready"
        if relay.spec.paused:
            message += "; paused: nothing is published"
        if done and done.generation != relay.metadata.generation:
            message += "; the last change has not reached all of them"
        return kind, "True", Reason.AS_EXPECTED, message
    if finding:
        return kind, "False", finding.reason, finding.message
    return kind, "False", Reason.PODS_NOT_READY, "no pod is ready yet"


def _waits_for(relay: OutboxRelay) -> str:
    held = ", ".join(relay.metadata.finalizers)
    return f"it is being deleted, and stays until its finalizers are removed: {held}"


def _progressing(
    relay: OutboxRelay, seen: RelaySeen, counts: Counts, scale: Scale | None
) -> Judged:
    kind = RelayCondition.PROGRESSING
    if is_being_deleted(relay):
        gone = "pods give back what they hold, and end"
        message = gone if is_retiring(relay) else "pods are deleted with the resource"
        return kind, "True", Reason.DELETING, message
    held = seen.restraint
    if held is not None and held.ends is not Ends.BY_A_PERSON:
        status = "True" if held.ends is Ends.BY_ITSELF else "False"
        return kind, status, held.reason, held.message
    if counts.complete:
        if scale is not None:
            return kind, "False", scale.reason, scale.message
        return kind, "False", Reason.AS_EXPECTED, "everything is as requested"
    if any(p.migrating and not p.terminating for p in seen.pods):
        return kind, "True", Reason.MIGRATING, "a pod brings the schema up to date before it starts"
    if counts.current and counts.updated == counts.existing:
        return kind, "True", Reason.SCALING, f"{counts.ready} of {counts.requested} pods are ready"
    return kind, "True", Reason.ROLLING_OUT, f"{counts.updated} of {counts.requested} pods are new"


def _degraded(relay: OutboxRelay, finding: Finding | None) -> Judged:
    kind = RelayCondition.DEGRADED
    if finding:
        return kind, "True", finding.reason, finding.message
    if not is_being_deleted(relay) and (risk := open_egress(relay)):
        return kind, "False", risk.reason, risk.message  # it works: nobody is woken up
    return kind, "False", Reason.AS_EXPECTED, "no problem is known"


def _backlog_healthy(relay: OutboxRelay, seen: RelaySeen, now: datetime) -> Judged:
    kind = RelayCondition.BACKLOG_HEALTHY
    reports = seen.reports
    backlog = figures.backlog_of(reports)
    if backlog is None:
        since = last_report(relay, seen)
        was = next((c for c in relay.status.conditions if c.type == kind), None)
        if was is not None and expects_report(relay, seen, now):
            return kind, was.status, was.reason, was.message
        ready = [p for p in seen.pods if p.ready and not p.terminating]
        why = f": {CAUSE}" if ready and not reports else ""
        if since is None:
            return kind, "Unknown", Reason.NO_REPORT, f"no pod has reported yet{why}"
        message = f"no pod reports; the figures are from {since:%Y-%m-%d %H:%M:%S} UTC{why}"
        return kind, "Unknown", Reason.REPORT_STALE, message
    found = figures.unhealthy(relay, backlog, figures.errors_of(reports), relay.status)
    if found:
        return kind, "False", found.reason, found.message
    return kind, "True", Reason.AS_EXPECTED, "events leave as fast as they arrive"


def _change(change: Judged | None, stuck: Finding | None) -> tuple[Judged, Judged]:
    """Reconciling and Stalled, never both True: the change in progress, and what blocks it."""
    reconciling, stalled = RelayCondition.RECONCILING, RelayCondition.STALLED
    nothing = "nothing blocks a change"
    if stuck:
        waits = "the change waits for a person: see Stalled"
        return (
            (reconciling, "False", stuck.reason, waits),
            (stalled, "True", stuck.reason, stuck.message),
        )
    if change:
        _, _, reason, message = change
        on_its_way = (reconciling, "True", reason, message)
    else:
        done = "the last change has reached every pod"
        on_its_way = (reconciling, "False", Reason.AS_EXPECTED, done)
    return on_its_way, (stalled, "False", Reason.AS_EXPECTED, nothing)


def _paused(relay: OutboxRelay) -> Judged:
    if relay.spec.paused:
        message = "nothing is published, events are kept; to resume, set spec.paused to false"
        return RelayCondition.PAUSED, "True", Reason.PAUSED, message
    return RelayCondition.PAUSED, "False", Reason.NOT_PAUSED, ""


def decide_invalid(
    relay_status: RelayStatus, generation: int, why: str, now: datetime
) -> RelayStatus:
    """For a spec that the schema accepts but we cannot use: what runs is left as it is."""
    message = f"{why}. What runs keeps running unchanged; correct the spec"
    finding = Finding(Reason.SPEC_INVALID, message)
    judged = [
        (RelayCondition.READY, "False", finding.reason, message),
        (RelayCondition.DEGRADED, "True", finding.reason, message),
        *_change(None, finding),
    ]
    made = as_conditions(judged, relay_status.conditions, generation, now)
    kept = [c for c in relay_status.conditions if c.type not in {m.type for m in made}]
    return relay_status.model_copy(
        update={
            "conditions": (*made, *kept),
            "observed_generation": generation,
        }
    )


def while_blocked(relay: OutboxRelay, status: RelayStatus, restraint: Restraint) -> RelayStatus:
    """The status while no child is written. A generation whose change is not carried out does not
    count as observed; with two operators, only the one that writes knows how a change proceeds."""
    before = relay.status
    if restraint.reason == Reason.RECONCILE_PAUSED:
        return status.model_copy(update={"observed_generation": before.observed_generation})
    if restraint.reason != Reason.OTHER_OPERATOR:
        return status
    status = status.model_copy(update={"observed_generation": before.observed_generation})
    was = {c.type: c for c in before.conditions if c.type in OF_A_CHANGE}
    return status.model_copy(
        update={"conditions": tuple(was.get(c.type, c) for c in status.conditions)}
    )

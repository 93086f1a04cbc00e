"""
The deletion of a relay: whether it must be retired in the database first, and when the resource
may go.

Only `deletionPolicy: Delete` needs the operator, and only while our finalizer holds the resource:
pods are drained, a Job retires the relay, and the finalizer is removed. In every other case the
garbage collector deletes everything, and the operator writes only the status.
"""

import json
from datetime import datetime, timedelta

from outbox_operator.relay.decide.checks import first_finding
from outbox_operator.relay.seen import RelaySeen
from outbox_operator.relay.spec.resource import OutboxRelay
from outbox_operator.shared.checks import Finding, the_operator_holds_back
from outbox_operator.shared.names import child_name, selector
from outbox_operator.shared.objects import Body, Resource
from outbox_operator.shared.reasons import Reason

RETIRE = "outbox.dev/retire"
"""The finalizer of a relay that must be retired in the database. It is our only finalizer."""
COLLECTOR_FINALIZERS = frozenset({"foregroundDeletion", "orphan"})
"""Finalizers of the garbage collector, while it deletes or orphans the children. It would do the
same to a child that is created meanwhile."""
ORPHANED_AFTER = timedelta(seconds=30)
"""How long after the deletion pods may run without their Deployment, which is deleted first."""

ORPHAN_KINDS = "deployment,cronjob,service,networkpolicy,configmap,serviceaccount,pdb"
"""All kinds of children that a relay has before its deletion, for the kubectl command."""


def is_being_deleted(relay: OutboxRelay) -> bool:
    return relay.metadata.deletion_timestamp is not None


def is_retiring(relay: OutboxRelay) -> bool:
    """It is being deleted, and waits until it is retired in the database."""
    wanted = relay.spec.deletion_policy == "Delete"
    return is_being_deleted(relay) and wanted and RETIRE in relay.metadata.finalizers


def must_be_retired(body: Body) -> bool:
    """Judged from the resource as the API server has it, because its spec may be unusable."""
    return bool((body.get("spec") or {}).get("deletionPolicy") == "Delete")


def is_collected(relay: OutboxRelay) -> bool:
    """The garbage collector is deleting or orphaning its children."""
    return not COLLECTOR_FINALIZERS.isdisjoint(relay.metadata.finalizers)


def current_replicas(relay: OutboxRelay, seen: RelaySeen) -> int | None:
    """The number of pods that the Deployment currently requests; None: it does not exist."""
    live = seen.child("Deployment", child_name(relay, "relay"))
    return None if live is None else live["spec"].get("replicas", 1)


def is_drained(relay: OutboxRelay, seen: RelaySeen) -> bool:
    """No pod is left that could hold a claim."""
    return current_replicas(relay, seen) in (0, None) and not seen.pods


def retirement(relay: OutboxRelay, seen: RelaySeen) -> str | None:
    """The state of the Job that retires the relay: Complete, Failed, or None while it runs."""
    job = seen.child("Job", child_name(relay, "retire"))
    for condition in (job or {}).get("status", {}).get("conditions") or ():
        if condition["status"] == "True" and condition["type"] in ("Complete", "Failed"):
            kind: str = condition["type"]
            return kind
    return None


def decide_finalizers(relay: OutboxRelay, seen: RelaySeen) -> list[str]:
    """The finalizers that the resource should have. Only `deletionPolicy: Delete` needs ours:
    everything else is deleted with its owner."""
    others = [f for f in relay.metadata.finalizers if f != RETIRE]
    if relay.spec.deletion_policy != "Delete":
        return others
    if not is_being_deleted(relay):
        return [*others, RETIRE]
    if RETIRE not in relay.metadata.finalizers:
        return others  # during a deletion the API server accepts no new finalizer
    gone = retirement(relay, seen) == "Complete" or any(
        r.namespace_terminating for r in seen.refusals
    )
    return others if gone else [*others, RETIRE]


# What people are shown -----------------------------------------------------------------------


def deletion_finding(relay: OutboxRelay, seen: RelaySeen, now: datetime) -> Finding | None:
    """What is wrong with a relay that is being deleted."""
    if not is_retiring(relay):
        held_up = retirement(relay, seen) == "Complete"  # only another finalizer holds it
        kept = relay.spec.deletion_policy == "Retain"
        return None if kept or held_up else skipped(relay.relay_name)
    let_go = "or set spec.deletionPolicy to Retain to delete the resource without that"
    if found := the_operator_holds_back(relay, seen):
        return Finding(found.reason, f"{found.message}; {let_go}")
    if retirement(relay, seen) == "Failed":
        return Finding(
            Reason.RETIREMENT_FAILED,
            f"the relay could not be retired in the database: check the log of Job "
            f"{child_name(relay, 'retire')}; delete that Job to try again, {let_go}",
        )
    if not is_drained(relay, seen):
        found = pods_are_orphaned(relay, seen, now)
    else:
        around = RelaySeen(pods=seen.retiring, refusals=seen.refusals, secrets=seen.secrets)
        found = first_finding(relay, around, now)
    return Finding(found.reason, f"{found.message}; {let_go}") if found else None


def pods_are_orphaned(relay: OutboxRelay, seen: RelaySeen, now: datetime) -> Finding | None:
    """After `--cascade=orphan` pods keep running, and the Deployment is no longer ours to scale
    down."""
    since = relay.metadata.deletion_timestamp
    staying = [pod.name for pod in seen.pods if not pod.terminating]
    if current_replicas(relay, seen) is not None or not staying:
        return None
    if since is None or now - since < ORPHANED_AFTER:
        return None
    mine = {k: v for k, v in selector(relay, "").items() if v}
    labels = ",".join(f"{k}={v}" for k, v in mine.items())
    return Finding(
        Reason.RETIREMENT_FAILED,
        "the relay is retired in the database when its pods are gone, but it no longer owns pod "
        f"{staying[0]}, nor its other children: delete them (kubectl delete -n "
        f"{relay.metadata.namespace} {ORPHAN_KINDS} -l {labels})",
    )


def skipped(relay_name: str) -> Finding:
    """For a relay with deletionPolicy: Delete that was deleted without our finalizer."""
    return Finding(
        Reason.RETIREMENT_SKIPPED,
        f"it was deleted with deletionPolicy: Delete, but without the finalizer {RETIRE}: if relay "
        f"{relay_name} was registered, the database keeps it, and events keep accumulating for it. "
        f"To retire it: outbox-relay retire --relay {relay_name} --reason TEXT",
    )


def how_to_delete_anyway(resource: Resource) -> str | None:
    """For a relay that is being deleted, and whose spec is invalid: it waits to be retired, which
    the operator cannot do."""
    meta = resource.metadata
    if meta.deletion_timestamp is None or RETIRE not in meta.finalizers:
        return None
    patch = json.dumps({"metadata": {"finalizers": [f for f in meta.finalizers if f != RETIRE]}})
    return (
        "it is being deleted, and waits until the relay is retired in the database, which needs a "
        f"valid spec; to delete it without that: kubectl patch outboxrelay -n {meta.namespace} "
        f"{meta.name} --type merge -p '{patch}'"
    )


def without_forbidden(relay: OutboxRelay) -> OutboxRelay:
    """A relay that is being deleted, with default settings for its pods: what is forbidden must not
    run, but the relay must still be retired in the database."""
    return relay.model_copy(
        update={"spec": relay.spec.model_copy(update={"pod": type(relay.spec.pod)()})}
    )

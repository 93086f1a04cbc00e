"""
The deletion of a relay: whether the database must forget it first, and when the resource may go.

Only `deletionPolicy: Delete` needs the operator, and only while our finalizer holds the resource:
then pods are drained, a Job forgets the relay, and the finalizer is released. In every other case
the deletion is the garbage collector's, and nothing is written but the status.
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
"""The finalizer of a relay whose place in the database goes with it. There is no other."""
COLLECTING = frozenset({"foregroundDeletion", "orphan"})
"""Finalizers of the garbage collector, while it deletes the children or makes them nobody's. What
is made meanwhile would share their fate."""
ORPHANED_AFTER = timedelta(seconds=30)
"""How long after the deletion pods may run without their Deployment: it is removed before them."""

ORPHANS = "deployment,cronjob,service,networkpolicy,configmap,serviceaccount,pdb"
"""All kinds of children that a relay has before it is deleted, as kubectl takes them."""


def is_leaving(relay: OutboxRelay) -> bool:
    return relay.metadata.deletion_timestamp is not None


def is_retiring(relay: OutboxRelay) -> bool:
    """It is being deleted, and waits until the database has forgotten it."""
    wanted = relay.spec.deletion_policy == "Delete"
    return is_leaving(relay) and wanted and RETIRE in relay.metadata.finalizers


def asks_to_be_forgotten(body: Body) -> bool:
    """A resource as the API server has it, whether we can use its spec or not."""
    return bool((body.get("spec") or {}).get("deletionPolicy") == "Delete")


def is_collected(relay: OutboxRelay) -> bool:
    """The garbage collector deals with its children now."""
    return not COLLECTING.isdisjoint(relay.metadata.finalizers)


def asked_replicas(relay: OutboxRelay, seen: RelaySeen) -> int | None:
    """What the Deployment asks for at present."""
    live = seen.child("Deployment", child_name(relay, "relay"))
    return None if live is None else live["spec"].get("replicas", 1)


def is_drained(relay: OutboxRelay, seen: RelaySeen) -> bool:
    """No pod is left that could hold a claim."""
    return asked_replicas(relay, seen) in (0, None) and not seen.pods


def retirement(relay: OutboxRelay, seen: RelaySeen) -> str | None:
    """How the Job that forgets the relay stands: Complete, Failed, or None while it is at work."""
    job = seen.child("Job", child_name(relay, "retire"))
    for condition in (job or {}).get("status", {}).get("conditions") or ():
        if condition["status"] == "True" and condition["type"] in ("Complete", "Failed"):
            kind: str = condition["type"]
            return kind
    return None


def decide_finalizers(relay: OutboxRelay, seen: RelaySeen) -> list[str]:
    """Those that the resource should have. Only `deletionPolicy: Delete` needs one: everything
    else goes away with its owner."""
    others = [f for f in relay.metadata.finalizers if f != RETIRE]
    if relay.spec.deletion_policy != "Delete":
        return others
    if not is_leaving(relay):
        return [*others, RETIRE]
    if RETIRE not in relay.metadata.finalizers:
        return others  # one that is being deleted takes no new ones
    gone = retirement(relay, seen) == "Complete" or any(r.leaving for r in seen.refusals)
    return others if gone else [*others, RETIRE]


# What people are shown -----------------------------------------------------------------------


def leaving_finding(relay: OutboxRelay, seen: RelaySeen, now: datetime) -> Finding | None:
    """What is wrong with a relay that is being deleted."""
    if not is_retiring(relay):
        held_up = retirement(relay, seen) == "Complete"  # by somebody else's finalizer
        kept = relay.spec.deletion_policy == "Retain"
        return None if kept or held_up else skipped(relay.relay_name)
    let_go = "or set spec.deletionPolicy to Retain to let the resource go without it"
    if found := the_operator_holds_back(relay, seen):
        return Finding(found.reason, f"{found.message}; {let_go}")
    if retirement(relay, seen) == "Failed":
        return Finding(
            Reason.RETIREMENT_FAILED,
            f"the database did not forget the relay: see the log of Job "
            f"{child_name(relay, 'retire')}; delete that Job to try again, {let_go}",
        )
    if not is_drained(relay, seen):
        found = pods_are_nobodys(relay, seen, now)
    else:
        around = RelaySeen(pods=seen.retiring, refusals=seen.refusals, secrets=seen.secrets)
        found = first_finding(relay, around, now)
    return Finding(found.reason, f"{found.message}; {let_go}") if found else None


def pods_are_nobodys(relay: OutboxRelay, seen: RelaySeen, now: datetime) -> Finding | None:
    """After `--cascade=orphan` they run on, and the Deployment is no longer ours to scale down."""
    since = relay.metadata.deletion_timestamp
    staying = [pod.name for pod in seen.pods if not pod.leaving]
    if asked_replicas(relay, seen) is not None or not staying:
        return None
    if since is None or now - since < ORPHANED_AFTER:
        return None
    mine = {k: v for k, v in selector(relay, "").items() if v}
    labels = ",".join(f"{k}={v}" for k, v in mine.items())
    return Finding(
        Reason.RETIREMENT_FAILED,
        f"the database forgets the relay when its pods are gone, and pod {staying[0]} no longer "
        "belongs to it, nor do the other children: delete them (kubectl delete -n "
        f"{relay.metadata.namespace} {ORPHANS} -l {labels})",
    )


def skipped(relay_name: str) -> Finding:
    """Of one that asked to be forgotten, and was deleted without our finalizer."""
    return Finding(
        Reason.RETIREMENT_SKIPPED,
        f"it was deleted with deletionPolicy: Delete, but without the finalizer {RETIRE}: if relay "
        f"{relay_name} was registered, the database keeps it, and events go on gathering for it. "
        f"To forget it: outbox-relay retire --relay {relay_name} --reason TEXT",
    )


def how_to_let_go(resource: Resource) -> str | None:
    """Of a relay that is being deleted, and whose spec cannot be understood: nobody can make the
    database forget it, and it waits for that."""
    meta = resource.metadata
    if meta.deletion_timestamp is None or RETIRE not in meta.finalizers:
        return None
    patch = json.dumps({"metadata": {"finalizers": [f for f in meta.finalizers if f != RETIRE]}})
    return (
        "it is being deleted, and waits until the database has forgotten the relay, which takes a "
        f"valid spec; to let it go without that: kubectl patch outboxrelay -n {meta.namespace} "
        f"{meta.name} --type merge -p '{patch}'"
    )


def without_forbidden(relay: OutboxRelay) -> OutboxRelay:
    """One that is being deleted, as the operator would make its pods: what is forbidden must not
    run, and yet the database must forget the relay."""
    return relay.model_copy(
        update={"spec": relay.spec.model_copy(update={"pod": type(relay.spec.pod)()})}
    )

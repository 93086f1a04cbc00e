"""
Marks: the annotations by which children are known again, whatever became of their owner references.

Written by `kube.writer` on each child, and never on its pods: a mark that changes must not make
new ones. Read by `decide` and `kube.owned`.
"""

import hashlib
import json
from collections.abc import Mapping

from outbox_operator.shared.names import MANAGED_BY, OWNER, Manifest, selector
from outbox_operator.shared.objects import Body, Resource

APPLIED = "outbox.dev/applied"
"""A digest of what we wanted. By it a field that we want no more is noticed, which otherwise looks
like one that somebody added."""
OPERATOR = "outbox.dev/operator"
"""The identity of the operator that wrote it last. By it two operators notice each other."""

ONE_TIME = frozenset({"Job", "SparkApplication"})
"""Kinds that do something once. One that lost its owner is never adopted: a Job that made the
database forget a relay, or an attempt at a replay, did so for a resource that is gone. Taken for
this one's it would show that the work is done."""


def digest(child: Body) -> str:
    return hashlib.sha256(json.dumps(child, sort_keys=True).encode()).hexdigest()[:16]


def stamped(child: Body, identity: str) -> Manifest:
    """With the digest of itself, and the identity of who writes it."""
    return annotated(child, {APPLIED: digest(child), OPERATOR: identity})


def annotated(child: Body, more: Mapping[str, str]) -> Manifest:
    metadata = child["metadata"]
    annotations = {**metadata.get("annotations", {}), **more}
    return {**child, "metadata": {**metadata, "annotations": annotations}}


def annotation(body: Body, name: str) -> str | None:
    found: str | None = (body["metadata"].get("annotations") or {}).get(name)
    return found


def is_orphan(body: Body) -> bool:
    """It belongs to nobody, and nobody is about to remove it."""
    metadata = body["metadata"]
    return not metadata.get("ownerReferences") and "deletionTimestamp" not in metadata


def bears_our_marks(body: Body, resource: Resource) -> bool:
    """It was made for a resource of this kind and name, whichever role it has."""
    labels = body["metadata"].get("labels") or {}
    role = labels.get("app.kubernetes.io/component", "")
    ours = {**selector(resource, role), **MANAGED_BY}
    return (
        bool(role)
        and labels.items() >= ours.items()
        and (annotation(body, OWNER) == resource.metadata.name)
    )


def is_adoptable(body: Body, resource: Resource) -> bool:
    """After `--cascade=orphan`, or a restore that left out owner references. Not for a resource
    that is being deleted: then the garbage collector is what made it nobody's."""
    return (
        body.get("kind") not in ONE_TIME
        and resource.metadata.deletion_timestamp is None
        and is_orphan(body)
        and bears_our_marks(body, resource)
    )


def why_not_adoptable(child: Body, live: Body) -> str | None:
    """Why an orphan cannot become that child; None: it can."""
    role = "app.kubernetes.io/component"
    if live["metadata"]["labels"][role] != child["metadata"]["labels"].get(role):
        return "its labels are those of another child"
    if child["kind"] != "Deployment":
        return None
    selects = (live.get("spec") or {}).get("selector")
    if selects == child["spec"]["selector"]:
        return None
    return (
        "it is nobody's, but cannot be adopted: its selector, which nobody can change, is "
        f"{json.dumps(selects, sort_keys=True)}"
    )


def is_owned(body: Body, resource: Resource) -> bool:
    """By this very resource, not by one that had its name before."""
    owners = body["metadata"].get("ownerReferences") or ()
    return any(owner.get("uid") == resource.metadata.uid for owner in owners)

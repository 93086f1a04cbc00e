"""
Marks: the annotations that identify children even if their owner references are lost.

`kube.writer` writes them on each child, and never on its pods: a mark that changes must not cause
new pods. Read by `decide` and `kube.owned`.
"""

import hashlib
import json
from collections.abc import Mapping

from outbox_operator.shared.names import MANAGED_BY, OWNER, Manifest, selector
from outbox_operator.shared.objects import Body, Resource

APPLIED = "outbox.dev/applied"
"""A digest of what we applied. It reveals a field that we no longer want, which would otherwise
look like one that somebody else added."""
OPERATOR = "outbox.dev/operator"
"""The identity of the operator that wrote the child last. It lets two operators notice each
other."""

ONE_TIME = frozenset({"Job", "SparkApplication"})
"""Kinds that do something once. An orphan of these kinds is never adopted: a Job that retired a
relay, or an attempt at a replay, worked for a resource that is gone. If adopted, it would make the
work look done for the new resource."""


def digest(child: Body) -> str:
    return hashlib.sha256(json.dumps(child, sort_keys=True).encode()).hexdigest()[:16]


def stamped(child: Body, identity: str) -> Manifest:
    """The child with its own digest and the identity of the operator that writes it."""
    return annotated(child, {APPLIED: digest(child), OPERATOR: identity})


def annotated(child: Body, more: Mapping[str, str]) -> Manifest:
    metadata = child["metadata"]
    annotations = {**metadata.get("annotations", {}), **more}
    return {**child, "metadata": {**metadata, "annotations": annotations}}


def annotation(body: Body, name: str) -> str | None:
    found: str | None = (body["metadata"].get("annotations") or {}).get(name)
    return found


def is_orphan(body: Body) -> bool:
    """It has no owner, and is not being deleted."""
    metadata = body["metadata"]
    return not metadata.get("ownerReferences") and "deletionTimestamp" not in metadata


def has_our_marks(body: Body, resource: Resource) -> bool:
    """It was created for a resource of this kind and name, in any role."""
    labels = body["metadata"].get("labels") or {}
    role = labels.get("app.kubernetes.io/component", "")
    ours = {**selector(resource, role), **MANAGED_BY}
    return (
        bool(role)
        and labels.items() >= ours.items()
        and (annotation(body, OWNER) == resource.metadata.name)
    )


def is_adoptable(body: Body, resource: Resource) -> bool:
    """An orphan after `--cascade=orphan`, or after a restore that left out owner references. Not
    for a resource that is being deleted: then the garbage collector removed the owner."""
    return (
        body.get("kind") not in ONE_TIME
        and resource.metadata.deletion_timestamp is None
        and is_orphan(body)
        and has_our_marks(body, resource)
    )


def why_not_adoptable(child: Body, live: Body) -> str | None:
    """Why an orphan cannot become this child; None: it can."""
    role = "app.kubernetes.io/component"
    if live["metadata"]["labels"][role] != child["metadata"]["labels"].get(role):
        return "its labels are those of another child"
    if child["kind"] != "Deployment":
        return None
    selects = (live.get("spec") or {}).get("selector")
    if selects == child["spec"]["selector"]:
        return None
    return (
        "it has no owner, but cannot be adopted: its selector cannot be changed, and is "
        f"{json.dumps(selects, sort_keys=True)}"
    )


def is_owned(body: Body, resource: Resource) -> bool:
    """By this resource itself, not by an earlier one of the same name."""
    owners = body["metadata"].get("ownerReferences") or ()
    return any(owner.get("uid") == resource.metadata.uid for owner in owners)

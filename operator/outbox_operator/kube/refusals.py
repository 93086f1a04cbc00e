"""
Compares a wanted child with the existing object: whether they differ, who owns the object, and why
the API server refused to write it.

Called by `writer` for each child. Pure.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from outbox_operator.kube.api import ApiError, JsonObject
from outbox_operator.shared.marks import (
    has_our_marks,
    is_adoptable,
    is_owned,
    why_not_adoptable,
)
from outbox_operator.shared.objects import Resource
from outbox_operator.shared.seen import Refusal
from outbox_operator.shared.texts import refusal_text

BLAMED_ON_THE_CHILD = (
    "failed to create typed patch object",
    "failed calling webhook",
    "denied the request",  # by a webhook that itself failed
)
"""Parts of the API server's message with status 500 that show that the child is to blame. Newer
servers may answer the first with 400: kubernetes/kubernetes#139253."""
WAITING_FOR_OLDER = "waiting until an older one is gone"
LEFT_OUT_DEFAULTS = {"paused": False}
"""Values that the server leaves out."""


def refusal_of(kind: str, name: str, error: ApiError, prefix: str = "") -> Refusal:
    """Raises the error again if the server itself has a problem: then the reconcile is tried
    again."""
    if error.status == 429 or (error.status >= 500 and not is_about_the_child(error)):
        raise error
    terminating = "NamespaceTerminating" in error.causes
    return Refusal(kind, name, prefix + refusal_text(str(error)), namespace_terminating=terminating)


def was_replaced(error: ApiError) -> bool:
    """We write with the uid that we saw. Either the object is gone (409), or somebody has created
    another one of its name, and the server reports that the uid cannot be changed."""
    return error.status == 409 or (error.status == 422 and "metadata.uid: " in str(error))


def is_about_the_child(error: ApiError) -> bool:
    """The server has no problem, but still answers with its own fault (500): for a field that it
    does not know, a duplicate key in a list, or an admission webhook that does not answer."""
    return error.status == 500 and any(words in str(error) for words in BLAMED_ON_THE_CHILD)


def would_use_foreign(child: JsonObject, refusals: Iterable[Refusal]) -> bool:
    """Whether its pods would use a ConfigMap or ServiceAccount that belongs to somebody else."""
    makes_pods = child["kind"] in ("Deployment", "CronJob", "Job")
    return makes_pods and any(
        r.taken and r.kind in ("ConfigMap", "ServiceAccount") for r in refusals
    )


def not_ours(resource: Resource, child: JsonObject, live: Mapping[str, Any]) -> Refusal | None:
    """Why an object with the child's name cannot be written; None: it is ours, or is adopted."""
    kind, name = child["kind"], child["metadata"]["name"]
    if is_owned(live, resource):
        return None
    if "deletionTimestamp" in live["metadata"]:
        return Refusal(kind, name, WAITING_FOR_OLDER, temporary=True)
    if not is_adoptable({**live, "kind": kind}, resource):
        return Refusal(kind, name, describe_owner(live, resource), taken=True)
    if why := why_not_adoptable(child, live):
        return Refusal(kind, name, why, taken=True)
    return None


def as_seen(child: JsonObject, live: Mapping[str, Any] | None) -> JsonObject:
    """The child with the uid of the object that was seen, so that no newer one is overwritten."""
    if live is None:
        return child
    return {**child, "metadata": {**child["metadata"], "uid": live["metadata"]["uid"]}}


def binds_another_role(child: JsonObject, live: Mapping[str, Any]) -> bool:
    """A RoleBinding to another role, such as that of an operator that was installed differently:
    for the whole cluster, or under another name."""
    return "roleRef" in child and bool(child["roleRef"] != live.get("roleRef"))


def differs(wanted: Any, live: Any) -> bool:
    """Whether the object lacks something that we want. What others added is theirs; what we no
    longer want shows in the digest."""
    if isinstance(wanted, Mapping):
        if not isinstance(live, Mapping):
            return bool(wanted) or live is not None
        return any(
            differs(value, live.get(key, LEFT_OUT_DEFAULTS.get(key)))
            for key, value in wanted.items()
        )
    if isinstance(wanted, list):
        if not isinstance(live, list):
            return bool(wanted)
        if wanted and all(isinstance(w, Mapping) and "name" in w for w in wanted):
            named = {item.get("name"): item for item in live if isinstance(item, Mapping)}
            return any(differs(w, named.get(w["name"])) for w in wanted)
        return len(wanted) != len(live) or any(
            differs(w, found) for w, found in zip(wanted, live, strict=True)
        )
    return bool(wanted != live)


def describe_owner(other: Mapping[str, Any], resource: Resource) -> str:
    if owners := other["metadata"].get("ownerReferences") or ():
        return f"it belongs to {owners[0]['kind']} {owners[0]['name']}"
    if has_our_marks(other, resource):
        return f"it is left over from another {resource.kind} of this name"
    return "it does not belong to the operator"

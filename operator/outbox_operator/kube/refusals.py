"""
What stands between a child that is wanted and the object that is there: whether they differ, whose
the object is, and why the API server refused to write it.

Asked by `writer` for each child. Pure.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from outbox_operator.kube.api import ApiError, JsonObject
from outbox_operator.shared.marks import (
    bears_our_marks,
    is_adoptable,
    is_owned,
    why_not_adoptable,
)
from outbox_operator.shared.objects import Resource
from outbox_operator.shared.seen import Refusal
from outbox_operator.shared.texts import refusal_text

NOT_ITS_FAULT = (
    "failed to create typed patch object",
    "failed calling webhook",
    "denied the request",  # by a webhook that failed itself
)
"""In the API server's message with the status 500. Newer ones may answer the first with 400:
kubernetes/kubernetes#139253."""
OLDER = "waiting until an older one is gone"
LEFT_OUT_DEFAULTS = {"paused": False}
"""What the server leaves out where it is so."""


def refusal_of(kind: str, name: str, error: ApiError, prefix: str = "") -> Refusal:
    """Unless it is the server that is not well: that is tried again."""
    if error.status == 429 or (error.status >= 500 and not is_about_the_child(error)):
        raise error
    leaving = "NamespaceTerminating" in error.causes
    return Refusal(kind, name, prefix + refusal_text(str(error)), leaving=leaving)


def is_another_now(error: ApiError) -> bool:
    """By the uid that it was written with: the object is gone (409), or somebody has made another
    of its name, of which the server reports that its uid cannot be changed."""
    return error.status == 409 or (error.status == 422 and "metadata.uid: " in str(error))


def is_about_the_child(error: ApiError) -> bool:
    """The server is well, and calls it its own fault all the same: a field that it does not know,
    or a key of a list that is there twice; and an admission webhook that does not answer."""
    return error.status == 500 and any(words in str(error) for words in NOT_ITS_FAULT)


def would_use_anothers(child: JsonObject, refusals: Iterable[Refusal]) -> bool:
    """Whether its pods would read a ConfigMap, or be a ServiceAccount, that is somebody else's."""
    makes_pods = child["kind"] in ("Deployment", "CronJob", "Job")
    return makes_pods and any(
        r.taken and r.kind in ("ConfigMap", "ServiceAccount") for r in refusals
    )


def not_ours(resource: Resource, child: JsonObject, live: Mapping[str, Any]) -> Refusal | None:
    """Of an object that has the child's name; None: it is ours, or is adopted."""
    kind, name = child["kind"], child["metadata"]["name"]
    if is_owned(live, resource):
        return None
    if "deletionTimestamp" in live["metadata"]:
        return Refusal(kind, name, OLDER, passing=True)
    if not is_adoptable({**live, "kind": kind}, resource):
        return Refusal(kind, name, whose(live, resource), taken=True)
    if why := why_not_adoptable(child, live):
        return Refusal(kind, name, why, taken=True)
    return None


def as_seen(child: JsonObject, live: Mapping[str, Any] | None) -> JsonObject:
    """To be written over that very object, and over none that has its name since."""
    if live is None:
        return child
    return {**child, "metadata": {**child["metadata"], "uid": live["metadata"]["uid"]}}


def is_bound_otherwise(child: JsonObject, live: Mapping[str, Any]) -> bool:
    """A RoleBinding to another role, such as that of an operator that was installed in another way:
    for the whole cluster, or under another name."""
    return "roleRef" in child and bool(child["roleRef"] != live.get("roleRef"))


def differs(wanted: Any, live: Any) -> bool:
    """Whether something that we want is not so. What others added is theirs; what we wanted before
    is known by the digest."""
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


def whose(other: Mapping[str, Any], resource: Resource) -> str:
    if owners := other["metadata"].get("ownerReferences") or ():
        return f"it belongs to {owners[0]['kind']} {owners[0]['name']}"
    if bears_our_marks(other, resource):
        return f"it is left over from another {resource.kind} of this name"
    return "it is not ours"

"""
What the watches know about the objects that belong to a resource, and whether it still exists.

Used by the `gather` of each kind. Only reads.
"""

from collections.abc import Mapping

from outbox_operator.kube.api import Api, ApiError, JsonObject
from outbox_operator.kube.kinds import CHILDREN, CUSTOM
from outbox_operator.kube.watch.informer import Informers, Owner
from outbox_operator.shared.marks import is_adoptable, is_owned
from outbox_operator.shared.objects import Resource
from outbox_operator.shared.seen import ChildKey


async def confirm(api: Api, resource: Resource) -> None:
    """Confirm that this resource still exists, not another one of its name, and that it was neither
    deleted nor changed since it was seen. The watch may lag, the garbage collector's work looks
    like drift, and a person who has just set `Retain` does not want a Job that retires the
    relay."""
    meta = resource.metadata
    found = await api.get(CUSTOM[resource.kind].path(meta.namespace, meta.name))
    if found["metadata"]["uid"] != meta.uid:
        raise ApiError(404, "NotFound", "it is gone", frozenset())
    if meta.deletion_timestamp is None and "deletionTimestamp" in found["metadata"]:
        raise ApiError(409, "Conflict", "it is being deleted", frozenset())
    if found["metadata"].get("generation", 0) != meta.generation:
        raise ApiError(409, "Conflict", "it has changed meanwhile", frozenset())


def owner(resource: Resource) -> Owner:
    return resource.metadata.namespace, resource.metadata.name


def children(informers: Informers, resource: Resource) -> Mapping[ChildKey, JsonObject]:
    """The children that the resource owns, and those whose owner reference somebody removed."""
    return {
        (kind, body["metadata"]["name"]): body
        for kind in CHILDREN
        for body in informers.of(kind, owner(resource))
        if is_owned(body, resource) or is_adoptable(body, resource)
    }


def answering(pods: list[JsonObject]) -> list[tuple[str, str]]:
    """Names and addresses of running pods."""
    return [
        (b["metadata"]["name"], ip)
        for b in pods
        if (ip := b.get("status", {}).get("podIP")) and b["status"].get("phase") == "Running"
    ]


def component(body: JsonObject) -> str:
    found: str = (body["metadata"].get("labels") or {}).get("app.kubernetes.io/component", "")
    return found

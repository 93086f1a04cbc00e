"""Gather: everything that is to be known of a relay before something is decided. Only reads."""

import asyncio
from collections.abc import Mapping
from typing import Any

from outbox_core.contract.report import Report
from outbox_operator.children.marks import is_adoptable
from outbox_operator.cluster.api import Api, ApiError, Body
from outbox_operator.cluster.informer import Informers, Owner
from outbox_operator.cluster.kinds import CHILDREN, PODS, Kind
from outbox_operator.cluster.reports import Reporters
from outbox_operator.cluster.secrets import Secrets
from outbox_operator.resources.objects import Resource
from outbox_operator.resources.relay import OutboxRelay
from outbox_operator.resources.settings import PORT, secrets
from outbox_operator.seen import ENDED, ChildKey, Pod, Seen


class Gatherer:
    def __init__(
        self, api: Api, informers: Informers, reporters: Reporters, secrets: Secrets
    ) -> None:
        self._api = api
        self._informers = informers
        self._reporters = reporters
        self._secrets = secrets

    async def relay(self, relay: OutboxRelay) -> Seen:
        bodies = self._informers.of(PODS.name, owner(relay))
        relaying = [b for b in bodies if component(b) == "relay"]
        reports, seen_secrets = await asyncio.gather(
            self._reporters.ask(answering(relaying), PORT, Report),
            self._secrets.look(relay.metadata.namespace, secrets(relay)),
        )
        return Seen(
            children=children(self._informers, relay),
            pods=[
                pod
                for b in relaying
                if not (pod := Pod.of(b, reports.get(b["metadata"]["name"]))).ended
            ],
            retiring=[Pod.of(b, None) for b in bodies if component(b) == "retire"],
            secrets=seen_secrets,
            mounted=frozenset(name for b in bodies for name in mounted(b)),
        )

    async def confirm(self, kind: Kind, resource: Resource) -> None:
        await confirm(self._api, kind, resource)


async def confirm(api: Api, kind: Kind, resource: Resource) -> None:
    """That very one is there, and not another of its name; and nobody has deleted it since it was
    seen, or changed its spec: the watch may lag, the garbage collector's work looks like drift, and
    who has just set `Retain` wants no Job that forgets the relay."""
    meta = resource.metadata
    found = await api.get(kind.path(meta.namespace, meta.name))
    if found["metadata"]["uid"] != meta.uid:
        raise ApiError(404, "NotFound", "it is gone", frozenset())
    if meta.deletion_timestamp is None and "deletionTimestamp" in found["metadata"]:
        raise ApiError(409, "Conflict", "it is being deleted", frozenset())
    if found["metadata"].get("generation", 0) != meta.generation:
        raise ApiError(409, "Conflict", "it was changed meanwhile", frozenset())


def owner(resource: Resource) -> Owner:
    return resource.metadata.namespace, resource.metadata.name


def children(informers: Informers, resource: Resource) -> Mapping[ChildKey, Body]:
    """Those that it owns, and those that it owned before somebody took that from them."""
    return {
        (kind, body["metadata"]["name"]): body
        for kind in CHILDREN
        for body in informers.of(kind, owner(resource))
        if is_owned(body, resource) or is_adoptable(body, resource)
    }


def answering(pods: list[Body]) -> list[tuple[str, str]]:
    """Names and addresses of those that run."""
    return [
        (b["metadata"]["name"], ip)
        for b in pods
        if (ip := b.get("status", {}).get("podIP")) and b["status"].get("phase") == "Running"
    ]


def mounted(pod: Body) -> list[str]:
    """The ConfigMaps that it needs to start, also once more."""
    if pod.get("status", {}).get("phase") in ENDED:
        return []
    volumes = pod.get("spec", {}).get("volumes") or ()
    return [v["configMap"]["name"] for v in volumes if "configMap" in v]


def component(body: Body) -> str:
    found: str = (body["metadata"].get("labels") or {}).get("app.kubernetes.io/component", "")
    return found


def is_owned(body: Mapping[str, Any], resource: Resource) -> bool:
    """By this very resource, not by one that had its name before."""
    owners = body["metadata"].get("ownerReferences") or ()
    return any(owner.get("uid") == resource.metadata.uid for owner in owners)

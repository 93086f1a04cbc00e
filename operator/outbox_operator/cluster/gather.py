"""Gather: everything that is to be known of a relay before something is decided. Only reads."""

import asyncio
import time
from collections.abc import Mapping

from outbox_operator.cluster.api import Api, ApiError, Body
from outbox_operator.cluster.informer import Informers, Owner
from outbox_operator.cluster.kinds import CHILDREN, PODS, SECRETS, Kind
from outbox_operator.cluster.reports import Reporters
from outbox_operator.resources.objects import Resource
from outbox_operator.resources.relay import OutboxRelay
from outbox_operator.resources.settings import PORT, secrets
from outbox_operator.seen import Pod, Secret, Seen


class Gatherer:
    def __init__(
        self, api: Api, informers: Informers, reporters: Reporters, secret_seconds: float
    ) -> None:
        """A look at a Secret counts for so long. They are read one by one, never listed or watched:
        the right to list Secrets is the right to read all of them."""
        self._api = api
        self._secret_seconds = secret_seconds
        self._informers = informers
        self._reporters = reporters
        self._secrets: dict[Owner, tuple[float, str | None]] = {}

    async def relay(self, relay: OutboxRelay) -> Seen:
        owner = (relay.metadata.namespace, relay.metadata.name)
        bodies = self._informers.of(PODS.name, owner)
        relaying = [b for b in bodies if component(b) == "relay"]
        asked = [
            (b["metadata"]["name"], ip)
            for b in relaying
            if (ip := b.get("status", {}).get("podIP")) and b["status"].get("phase") == "Running"
        ]
        reports, seen_secrets = await asyncio.gather(
            self._reporters.ask(asked, PORT), self._look_at_secrets(relay)
        )
        return Seen(
            children=self.children(relay),
            pods=[Pod.of(b, reports.get(b["metadata"]["name"])) for b in relaying],
            retiring=[Pod.of(b, None) for b in bodies if component(b) == "retire"],
            secrets=seen_secrets,
        )

    async def is_there(self, kind: Kind, resource: Resource) -> bool:
        """That very one, and not another of its name."""
        try:
            found = await self._api.get(
                kind.path(resource.metadata.namespace, resource.metadata.name)
            )
        except ApiError as error:
            if error.is_absence:
                return False
            raise
        return bool(found["metadata"]["uid"] == resource.metadata.uid)

    def children(self, resource: Resource) -> Mapping[tuple[str, str], Body]:
        owner = (resource.metadata.namespace, resource.metadata.name)
        return {
            (kind, body["metadata"]["name"]): body
            for kind in CHILDREN
            for body in self._informers.of(kind, owner)
            if is_owned(body, resource)
        }

    async def _look_at_secrets(self, relay: OutboxRelay) -> list[Secret]:
        namespace = relay.metadata.namespace
        return [Secret(name, await self._version(namespace, name)) for name in secrets(relay)]

    async def _version(self, namespace: str, name: str) -> str | None:
        """What changes when the Secret does; its content is not asked for."""
        at, version = self._secrets.get((namespace, name), (0.0, None))
        if version is None or time.monotonic() - at > self._secret_seconds:
            found = await self._api.get_metadata(SECRETS.path(namespace, name))
            version = None if found is None else _identity(found)
            self._secrets[namespace, name] = time.monotonic(), version
        return version


def _identity(body: Body) -> str:
    return f"{body['metadata']['uid']}/{body['metadata']['resourceVersion']}"


def component(body: Body) -> str:
    found: str = (body["metadata"].get("labels") or {}).get("app.kubernetes.io/component", "")
    return found


def is_owned(body: Body, resource: Resource) -> bool:
    """By this very resource, not by one that had its name before."""
    owners = body["metadata"].get("ownerReferences") or ()
    return any(owner.get("uid") == resource.metadata.uid for owner in owners)

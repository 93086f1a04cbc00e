"""Gather: everything that is to be known of a replay before something is decided. Only reads."""

import asyncio
from collections.abc import Mapping
from datetime import timedelta

from pydantic import ValidationError

from outbox_core.contract.replay import ReplayReport
from outbox_operator.children.replay_pods import UID
from outbox_operator.cluster.api import Api, ApiError, Body
from outbox_operator.cluster.gather import (
    answering,
    children,
    component,
    confirm,
    is_owned,
    owner,
)
from outbox_operator.cluster.informer import Informers
from outbox_operator.cluster.kinds import CHILDREN, PODS, RELAYS, REPLAYS, SPARK_APPLICATIONS
from outbox_operator.cluster.reports import Reporters
from outbox_operator.cluster.secrets import Secrets
from outbox_operator.resources.relay import OutboxRelay
from outbox_operator.resources.replay import OutboxReplay
from outbox_operator.resources.settings import PORT, store_secrets
from outbox_operator.seen import Pod
from outbox_operator.seen_replay import Driver, ReplaySeen


class ReplayGatherer:
    def __init__(
        self, api: Api, informers: Informers, reporters: Reporters, secrets: Secrets
    ) -> None:
        self._api = api
        self._informers = informers
        self._reporters = reporters
        self._secrets = secrets

    def at_rest(self, replay: OutboxReplay) -> ReplaySeen:
        """What is left of one that is finished, as far as the watches have told."""
        pods = [b for b in self._pods(replay) if component(b) == "driver"]
        found = children(self._informers, replay)
        return ReplaySeen(children=found, drivers=[Driver.of(b, None) for b in pods])

    def _pods(self, replay: OutboxReplay) -> list[Body]:
        return [
            b
            for b in self._informers.of(PODS.name, owner(replay))
            if (b["metadata"].get("labels") or {}).get(UID) == replay.metadata.uid
        ]

    async def replay(self, replay: OutboxReplay) -> ReplaySeen:
        pods = self._pods(replay)
        drivers = [b for b in pods if component(b) == "driver"]
        matters = replay.has_executors or replay.spec.engine == SPARK_APPLICATIONS.name
        spark_operator = matters and await self._knows_spark()
        relay, found, reports = await asyncio.gather(
            self._api.find(RELAYS.path(replay.metadata.namespace, replay.spec.relay_ref.name)),
            self._children(replay, spark_operator),
            self._reporters.ask(answering(drivers), PORT, ReplayReport),
        )
        known = _parsed(relay)
        names = store_secrets(known) if known else ()
        return ReplaySeen(
            children=found,
            secrets=await self._secrets.look(replay.metadata.namespace, names),
            relay=known,
            relay_invalid=relay is not None and known is None,
            drivers=[
                Driver.of(
                    *(b, reports.get(b["metadata"]["name"])),
                    timedelta(seconds=self._reporters.unanswered(b["metadata"]["name"])),
                )
                for b in drivers
            ],
            executors=[
                pod
                for b in pods
                if component(b) == "executor" and not (pod := Pod.of(b, None)).ended
            ],
            spark_operator=spark_operator,
        )

    async def confirm(self, replay: OutboxReplay) -> None:
        await confirm(self._api, REPLAYS, replay)

    async def _knows_spark(self) -> bool:
        """The cluster, SparkApplications. Asked for where it is not watched: one that was installed
        a moment ago is taken."""
        kind = SPARK_APPLICATIONS
        if self._informers.served(kind.name):
            return True
        try:
            found = await self._api.get(kind.api)
        except ApiError as error:
            if error.status in (403, 404):
                return False
            raise
        known = any(r["name"] == kind.plural for r in found.get("resources") or ())
        if known:
            self._informers.known(kind.name)
        return known

    async def _children(
        self, replay: OutboxReplay, spark_operator: bool
    ) -> Mapping[tuple[str, str], Body]:
        """The present attempt surely: the watch may not have told of it yet."""
        found = dict(children(self._informers, replay))
        status = replay.status
        if status.engine and status.application and status.phase != "Suspended":
            key = status.engine, status.application
            kind = CHILDREN[status.engine]
            if key not in found and not (kind.optional and not spark_operator):
                body = await self._api.find(kind.path(replay.metadata.namespace, key[1]))
                if body is not None and is_owned(body, replay):
                    found[key] = body
        return found


def _parsed(body: Body | None) -> OutboxRelay | None:
    if body is None:
        return None
    try:
        return OutboxRelay.parse(body)
    except ValidationError:
        return None

"""Gather: everything that the decisions about a replay need to know. Only reads."""

import asyncio
from collections.abc import Mapping
from datetime import timedelta

from pydantic import ValidationError

from outbox_core.contract.replay import ReplayReport
from outbox_operator.kinds import RELAY
from outbox_operator.kube.api import Api, ApiError, JsonObject
from outbox_operator.kube.kinds import CHILDREN, CUSTOM, PODS, SPARK_APPLICATIONS
from outbox_operator.kube.owned import answering, children, component, confirm, owner
from outbox_operator.kube.reports import Reporters
from outbox_operator.kube.secrets import Secrets
from outbox_operator.kube.watch.informer import Informers
from outbox_operator.replay.children.pod import UID
from outbox_operator.replay.seen import Driver, ReplaySeen
from outbox_operator.replay.spec.resource import OutboxReplay
from outbox_operator.replay.spec.target import ParseRelay, TargetRelay
from outbox_operator.shared.marks import is_owned
from outbox_operator.shared.pod_parts import PORT
from outbox_operator.shared.seen import Pod
from outbox_operator.shared.store import store_secrets


def pods_of(replay: OutboxReplay, pods: list[JsonObject]) -> list[JsonObject]:
    """Without those of an earlier replay of the same name."""
    uid = replay.metadata.uid
    return [b for b in pods if (b["metadata"].get("labels") or {}).get(UID) == uid]


def staying(pods: list[JsonObject]) -> list[JsonObject]:
    """Without pods that are being deleted. Their network may already be gone, and while we waited
    for an answer, the termination message could come and be deleted with the pod."""
    return [b for b in pods if "deletionTimestamp" not in b["metadata"]]


class ReplayGatherer:
    def __init__(
        self,
        api: Api,
        informers: Informers,
        reporters: Reporters,
        secrets: Secrets,
        parse_relay: ParseRelay,
    ) -> None:
        self._api = api
        self._informers = informers
        self._reporters = reporters
        self._secrets = secrets
        self._parse_relay = parse_relay

    def at_rest(self, replay: OutboxReplay) -> ReplaySeen:
        """What is left of a finished replay, as far as the watches show."""
        pods = [b for b in self._pods(replay) if component(b) == "driver"]
        found = children(self._informers, replay)
        return ReplaySeen(children=found, drivers=[Driver.of(b, None) for b in pods])

    def _pods(self, replay: OutboxReplay) -> list[JsonObject]:
        return pods_of(replay, self._informers.of(PODS.name, owner(replay)))

    def _gone(self, replay: OutboxReplay) -> list[Driver]:
        pods = pods_of(replay, self._informers.deleted(PODS.name, owner(replay)))
        return [Driver.of(b, None) for b in pods if component(b) == "driver"]

    async def replay(self, replay: OutboxReplay) -> ReplaySeen:
        pods = self._pods(replay)
        drivers = [b for b in pods if component(b) == "driver"]
        matters = replay.has_executors or replay.spec.engine == SPARK_APPLICATIONS.name
        spark_operator = matters and await self._knows_spark()
        relays = CUSTOM[RELAY.name]
        relay, found, reports = await asyncio.gather(
            self._api.find(relays.path(replay.metadata.namespace, replay.spec.relay_ref.name)),
            self._children(replay, spark_operator),
            self._reporters.ask(answering(staying(drivers)), PORT, ReplayReport),
        )
        known = self._parsed(relay)
        names = store_secrets(known) if known else ()
        return ReplaySeen(
            children=found,
            secrets=await self._secrets.check(replay.metadata.namespace, names),
            relay=known,
            relay_invalid=relay is not None and known is None,
            drivers=[
                Driver.of(
                    *(b, reports.get(b["metadata"]["name"])),
                    timedelta(seconds=self._reporters.unanswered(b["metadata"]["name"])),
                )
                for b in drivers
            ],
            gone=self._gone(replay),
            executors=[
                pod
                for b in pods
                if component(b) == "executor" and not (pod := Pod.of(b, None)).ended
            ],
            spark_operator=spark_operator,
        )

    async def confirm(self, replay: OutboxReplay) -> None:
        await confirm(self._api, replay)

    async def _knows_spark(self) -> bool:
        """Whether the cluster knows SparkApplications. If they are not watched, ask the API server:
        the Spark operator may have been installed a moment ago."""
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
    ) -> Mapping[tuple[str, str], JsonObject]:
        """With the current attempt in any case: the watch may not show it yet."""
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

    def _parsed(self, body: JsonObject | None) -> TargetRelay | None:
        if body is None:
            return None
        try:
            return self._parse_relay(body)
        except ValidationError:
            return None

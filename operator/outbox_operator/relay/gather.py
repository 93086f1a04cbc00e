"""Gather: everything that the decisions about a relay need to know. Only reads."""

import asyncio

from outbox_core.contract.report import Report
from outbox_operator.kube.api import Api, JsonObject
from outbox_operator.kube.kinds import PODS
from outbox_operator.kube.owned import answering, children, component, confirm, owner
from outbox_operator.kube.reports import Reporters
from outbox_operator.kube.secrets import Secrets
from outbox_operator.kube.watch.informer import Informers
from outbox_operator.relay.seen import RelaySeen
from outbox_operator.relay.spec.resource import OutboxRelay
from outbox_operator.relay.spec.settings import secrets
from outbox_operator.shared.pod_parts import PORT
from outbox_operator.shared.seen import ENDED, Pod


class RelayGatherer:
    def __init__(
        self, api: Api, informers: Informers, reporters: Reporters, secrets: Secrets
    ) -> None:
        self._api = api
        self._informers = informers
        self._reporters = reporters
        self._secrets = secrets

    async def relay(self, relay: OutboxRelay) -> RelaySeen:
        bodies = self._informers.of(PODS.name, owner(relay))
        relaying = [b for b in bodies if component(b) == "relay"]
        reports, seen_secrets = await asyncio.gather(
            self._reporters.ask(answering(relaying), PORT, Report),
            self._secrets.check(relay.metadata.namespace, secrets(relay)),
        )
        return RelaySeen(
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

    async def confirm(self, relay: OutboxRelay) -> None:
        await confirm(self._api, relay)


def mounted(pod: JsonObject) -> list[str]:
    """The ConfigMaps that the pod needs to start, or to start again."""
    if pod.get("status", {}).get("phase") in ENDED:
        return []
    volumes = pod.get("spec", {}).get("volumes") or ()
    return [v["configMap"]["name"] for v in volumes if "configMap" in v]

"""
Gather: everything that the decisions about a relay need to know. Only reads.

In two steps: `ask` reads Secrets and asks pods, `seen` turns the answers and what the watches know
into what decisions judge by. If the first step shows that nothing has changed, the second is not
needed.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from outbox_core.contract.report import Report
from outbox_operator.kube.api import Api, JsonObject
from outbox_operator.kube.kinds import PODS
from outbox_operator.kube.owned import answering, children, component, confirm, owner
from outbox_operator.kube.reports import Reporters
from outbox_operator.kube.secrets import Secrets
from outbox_operator.kube.watch.informer import Informers
from outbox_operator.relay.seen import RelaySeen
from outbox_operator.relay.spec.resource import OutboxRelay
from outbox_operator.shared.pod_parts import PORT
from outbox_operator.shared.seen import ENDED, Pod, Secret


@dataclass(frozen=True)
class Answers:
    """What was asked for, and which children and pods the watches knew before that."""

    objects: tuple[int, ...]
    """It changes with each child and pod of the relay."""
    secrets: tuple[Secret, ...]
    reports: Mapping[str, Report]
    """By pod."""


class RelayGatherer:
    def __init__(
        self, api: Api, informers: Informers, reporters: Reporters, secrets: Secrets
    ) -> None:
        self._api = api
        self._informers = informers
        self._reporters = reporters
        self._secrets = secrets

    async def ask(self, relay: OutboxRelay, names: Iterable[str]) -> Answers:
        """`names`: of its Secrets."""
        # First: a change while pods are asked must not pass for one that was seen.
        objects = self._informers.version(owner(relay))
        versions = await self._secrets.check(relay.metadata.namespace, names)
        reports = await self._reporters.ask(answering(self._relaying(relay)), PORT, Report)
        return Answers(objects, tuple(versions), reports)

    def seen(self, relay: OutboxRelay, answers: Answers) -> RelaySeen:
        bodies = self._informers.of(PODS.name, owner(relay))
        return RelaySeen(
            children=children(self._informers, relay),
            pods=[
                pod
                for b in self._relaying(relay)
                if not (pod := Pod.of(b, answers.reports.get(b["metadata"]["name"]))).ended
            ],
            retiring=[Pod.of(b, None) for b in bodies if component(b) == "retire"],
            secrets=answers.secrets,
            mounted=frozenset(name for b in bodies for name in mounted(b)),
        )

    def _relaying(self, relay: OutboxRelay) -> list[JsonObject]:
        bodies = self._informers.of(PODS.name, owner(relay))
        return [b for b in bodies if component(b) == "relay"]

    async def confirm(self, relay: OutboxRelay) -> None:
        await confirm(self._api, relay)


def mounted(pod: JsonObject) -> list[str]:
    """The ConfigMaps that the pod needs to start, or to start again."""
    if pod.get("status", {}).get("phase") in ENDED:
        return []
    volumes = pod.get("spec", {}).get("volumes") or ()
    return [v["configMap"]["name"] for v in volumes if "configMap" in v]

"""
The program: builds the parts, starts and stops them. Wiring only.

Kopf drives it through `handlers`: start, events of the resources, stop.
"""

import asyncio
import itertools
import logging
from collections.abc import Mapping
from typing import Any

from aiohttp import web

from outbox_operator.dispatch import Dispatcher
from outbox_operator.kinds import RELAY, REPLAY, all_kinds
from outbox_operator.kube.api import Api, ApiError
from outbox_operator.kube.kinds import CHILDREN, CUSTOM, CUSTOM_API, PODS
from outbox_operator.kube.reports import Reporters
from outbox_operator.kube.secrets import Secrets
from outbox_operator.kube.watch.informer import Informers, Owner
from outbox_operator.kube.watch.probe import Probe
from outbox_operator.kube.watch.readiness import advice, place_of, readiness
from outbox_operator.kube.watch.state import Watch
from outbox_operator.kube.watch.watches import Watches
from outbox_operator.kube.writer import Writer
from outbox_operator.metrics import Metrics
from outbox_operator.reconciling import KindReconciler
from outbox_operator.relay.gather import RelayGatherer
from outbox_operator.relay.reconcile.reconciler import RelayReconciler
from outbox_operator.relay.spec.resource import OutboxRelay
from outbox_operator.repeats import Repeats
from outbox_operator.replay.gather import ReplayGatherer
from outbox_operator.replay.reconcile import ReplayReconciler
from outbox_operator.server import serve
from outbox_operator.settings import OperatorSettings
from outbox_operator.shared.objects import Key
from outbox_operator.worklist import Worklist

log = logging.getLogger("outbox.operator")

KIND_POLL_SECONDS = 2.0
"""How often to check for our kinds while the cluster does not have them yet."""
STALLED_SECONDS = 600.0
"""No reconcile takes longer, however slow the API server is: every request times out after half a
minute."""


class Operator:
    def __init__(self, settings: OperatorSettings) -> None:
        self._settings = settings
        self.failure: str | None = None
        """Why it could not start."""
        self._tasks: list[asyncio.Task[None]] = []
        """None of them should ever end by itself."""
        self._beginning: list[asyncio.Task[None]] = []
        self._seen_places: set[str | None] = set()
        """Namespaces whose children are all listed; None: every namespace."""
        self._server: web.AppRunner | None = None
        self._metrics = Metrics()
        self._watches = Watches(self._watch_changed)
        self._failing: dict[tuple[str, str | None], Repeats] = {}
        """By watch: which of its troubles were logged."""
        self._api: Api | None = None
        self._worklist: Worklist[Key] | None = None
        self._dispatcher: Dispatcher | None = None

    async def start(self) -> None:
        metrics = self._metrics
        self._server = await serve(
            metrics.registry, self._settings.port, self.trouble, self.readiness
        )
        api = self._api = await Api.connect()
        await self._wait_for_kinds(api)
        reporters = Reporters()
        informers = Informers(
            *(api, (*CHILDREN.values(), PODS), self._settings.namespaces),
            *(self._child_changed, self._watches),
        )
        secrets = Secrets(api, self._settings.secret_interval.total_seconds())
        writer = Writer(api, self._settings.identity)
        around = (api, informers, reporters, secrets)
        reconcilers: dict[str, KindReconciler[Any]] = {
            RELAY.name: RelayReconciler(self._settings, RelayGatherer(*around), writer),
            REPLAY.name: ReplayReconciler(
                self._settings, ReplayGatherer(*around, OutboxRelay.parse), writer
            ),
        }
        dispatcher = self._dispatcher = Dispatcher(reconcilers, writer, metrics)
        self._worklist = Worklist(dispatcher.reconcile, self._settings.workers)
        self._tasks = [*informers.start(), *self._worklist.start(), *self._probes(api, informers)]
        self._beginning = [
            asyncio.create_task(self._begin(informers, place)) for place in informers.places
        ]
        log.info(
            "started",
            extra={
                "event": "start",
                "identity": self._settings.identity,
                "namespaces": list(self._settings.namespaces) or ["*"],
                "relay_image": self._settings.relay_image,
                "spark_image": self._settings.spark_image,
            },
        )

    def _probes(self, api: Api, informers: Informers) -> list[asyncio.Task[None]]:
        """Of what Kopf watches, in the same places."""
        assert self._dispatcher is not None
        started = []
        for kind, place in itertools.product(CUSTOM.values(), informers.places):
            self._watches.expect(kind, place)
            probe = Probe(api, kind, place, self._watches, self._dispatcher.knows)
            started.append(asyncio.create_task(probe.run(), name=f"probe {kind.plural}"))
        return started

    def _watch_changed(self, watch: Watch) -> None:
        self._metrics.watching(watch.kind, watch.namespace, watch.synced)
        at = {"event": "watch", "namespace": watch.namespace or "*"}
        failing = self._failing.setdefault((watch.kind, watch.namespace), Repeats())
        if watch.trouble is not None and failing.is_due(watch.trouble):
            log.warning(advice(watch), extra=at)
        if watch.synced and failing.has_logged:
            log.info("watching %s in %s", watch.resource, place_of(watch), extra=at)
            failing.forget()

    def readiness(self) -> tuple[bool, str]:
        """Whether every watch works or, of configured namespaces, all watches of at least one."""
        found = readiness(self._watches.all)
        return found.ready, found.message

    async def _wait_for_kinds(self, api: Api) -> None:
        """Kopf looks for them only once, when it starts: more would need cluster-wide rights."""
        warned = False
        while not await self._are_served(api):
            if not warned:
                log.warning(
                    "the cluster does not have %s yet: apply crds/, or install the chart with "
                    "crds.enabled; waiting for them",
                    all_kinds(),
                    extra={"event": "waiting"},
                )
            warned = True
            await asyncio.sleep(KIND_POLL_SECONDS)

    async def _are_served(self, api: Api) -> bool:
        try:
            known = await api.get(CUSTOM_API)
        except ApiError as error:
            if error.status == 404:
                return False
            raise
        return {kind.plural for kind in CUSTOM.values()} <= {r["name"] for r in known["resources"]}

    async def _begin(self, informers: Informers, place: str | None) -> None:
        """Decide nothing before all children there are listed: one that is not listed yet would
        seem to be gone."""
        await informers.synced(place)
        assert self._dispatcher is not None
        self._seen_places.add(place)
        for key in self._dispatcher.known():
            if place in (None, key[1]):
                self._schedule(key)

    def _schedule(self, key: Key) -> None:
        assert self._worklist is not None
        if not self._seen_places.isdisjoint({None, key[1]}):
            self._worklist.changed(key)

    def trouble(self) -> str | None:
        """What only a restart can fix."""
        for task in self._tasks:
            if task.done():
                return f"{task.get_name()} has ended"
        stalled = self._worklist.stalled if self._worklist is not None else 0.0
        if stalled > STALLED_SECONDS:
            return f"no resource was reconciled for {stalled:.0f} seconds"
        return None

    async def stop(self) -> None:
        tasks = [*self._beginning, *self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._api is not None:
            await self._api.close()
        if self._server is not None:
            await self._server.cleanup()

    def noticed(self, kind: str, namespace: str, name: str, event: Mapping[str, Any]) -> None:
        """Kopf reports an event of a resource."""
        assert self._dispatcher is not None
        key = (kind, namespace, name)
        seen = self._dispatcher.deleted if event["type"] == "DELETED" else self._dispatcher.seen
        if seen(key, event["object"]):
            self._schedule(key)

    def _child_changed(self, owner: Owner) -> None:
        """Its owner may be of any kind, and resources of different kinds may share a name."""
        assert self._dispatcher is not None
        for kind in CUSTOM.values():
            key = (kind.name, *owner)
            if self._dispatcher.knows(key):  # if not, Kopf has yet to report it, and that starts it
                self._schedule(key)

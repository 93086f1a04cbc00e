"""
The program: the parts put together, started and stopped. Wiring only.

Kopf drives it through `handlers`: start, what it sees of the resources, stop.
"""

import asyncio
import itertools
import logging
from collections.abc import Mapping
from typing import Any

from aiohttp import web

from outbox_operator.cluster.api import Api, ApiError
from outbox_operator.cluster.client import Writer
from outbox_operator.cluster.gather import Gatherer
from outbox_operator.cluster.gather_replay import ReplayGatherer
from outbox_operator.cluster.informer import Informers, Owner
from outbox_operator.cluster.kinds import CHILDREN, PODS, RELAYS, REPLAYS
from outbox_operator.cluster.probe import Probe
from outbox_operator.cluster.reports import Reporters
from outbox_operator.cluster.secrets import Secrets
from outbox_operator.cluster.seldom import Seldom
from outbox_operator.cluster.watches import Watches
from outbox_operator.decide.watching import advice, place_of, readiness
from outbox_operator.metrics import Metrics
from outbox_operator.reconcile import Reconciler
from outbox_operator.reconcile_replay import Key, ReplayReconciler
from outbox_operator.server import serve
from outbox_operator.settings import OperatorSettings
from outbox_operator.watch import Watch
from outbox_operator.worklist import Worklist

log = logging.getLogger("outbox.operator")

KINDS_SECONDS = 2.0
STALLED_SECONDS = 600.0
"""A look takes no longer, however slow the API server is: it gives up on each request after half a
minute."""


class Operator:
    def __init__(self, settings: OperatorSettings) -> None:
        self._settings = settings
        self.failure: str | None = None
        """Why it could not start."""
        self._tasks: list[asyncio.Task[None]] = []
        """None of them ever ends by itself."""
        self._beginning: list[asyncio.Task[None]] = []
        self._seen_places: set[str | None] = set()
        """Namespaces of which all that we have was seen; None: all of them."""
        self._server: web.AppRunner | None = None
        self._metrics = Metrics()
        self._watches = Watches(self._watch_changed)
        self._failing: dict[tuple[str, str | None], Seldom] = {}
        """By watch: what was said of its troubles."""
        self._api: Api | None = None
        self._reporters: Reporters | None = None
        self._worklist: Worklist[Key] | None = None
        self._reconciler: Reconciler | None = None

    async def start(self) -> None:
        metrics = self._metrics
        self._server = await serve(
            metrics.registry, self._settings.port, self.trouble, self.readiness
        )
        api = self._api = await Api.connect()
        await self._wait_for_kinds(api)
        reporters = self._reporters = Reporters()
        informers = Informers(
            *(api, (*CHILDREN.values(), PODS), self._settings.namespaces),
            *(self._child_changed, self._watches),
        )
        secrets = Secrets(api, self._settings.secret_look.total_seconds())
        writer = Writer(api, self._settings.identity)
        replays = ReplayReconciler(
            self._settings, ReplayGatherer(api, informers, reporters, secrets), writer, metrics
        )
        gatherer = Gatherer(api, informers, reporters, secrets)
        reconciler = self._reconciler = Reconciler(
            self._settings, gatherer, writer, metrics, replays
        )
        self._worklist = Worklist(reconciler.look, self._settings.workers)
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
        """Of what Kopf watches."""
        assert self._reconciler is not None
        started = []
        for kind, place in itertools.product((RELAYS, REPLAYS), informers.places):
            self._watches.expect(kind, place)
            probe = Probe(api, kind, place, self._watches, self._reconciler.knows)
            started.append(asyncio.create_task(probe.run(), name=f"probe {kind.plural}"))
        return started

    def _watch_changed(self, watch: Watch) -> None:
        self._metrics.watching(watch.kind, watch.namespace, watch.synced)
        at = {"event": "watch", "namespace": watch.namespace or "*"}
        failing = self._failing.setdefault((watch.kind, watch.namespace), Seldom())
        if watch.trouble is not None and failing.is_due(watch.trouble):
            log.warning(advice(watch), extra=at)
        if watch.synced and failing.has_told:
            log.info("watching %s in %s", watch.resource, place_of(watch), extra=at)
            failing.forget()

    def readiness(self) -> tuple[bool, str]:
        """Whether every watch works, or at least those of some namespace that was named."""
        found = readiness(self._watches.all)
        return found.ready, found.message

    async def _wait_for_kinds(self, api: Api) -> None:
        """Kopf looks for them once, at the start, because more would take rights on the cluster."""
        told = False
        while not await self._are_served(api):
            if not told:
                log.warning(
                    "OutboxRelay and OutboxReplay are not known here yet: apply crds/, or install "
                    "the chart with crds.enabled; waiting for them",
                    extra={"event": "waiting"},
                )
            told = True
            await asyncio.sleep(KINDS_SECONDS)

    async def _are_served(self, api: Api) -> bool:
        try:
            known = await api.get(RELAYS.api)
        except ApiError as error:
            if error.status == 404:
                return False
            raise
        return {RELAYS.plural, REPLAYS.plural} <= {r["name"] for r in known["resources"]}

    async def _begin(self, informers: Informers, place: str | None) -> None:
        """Nothing is judged before all that we have there was seen: what is not yet known would
        look as if it were gone."""
        await informers.synced(place)
        assert self._reconciler is not None
        self._seen_places.add(place)
        for key in self._reconciler.known():
            if place in (None, key[1]):
                self._look_at(key)

    def _look_at(self, key: Key) -> None:
        assert self._worklist is not None
        if not self._seen_places.isdisjoint({None, key[1]}):
            self._worklist.changed(key)

    def trouble(self) -> str | None:
        """What only a restart can cure."""
        for task in self._tasks:
            if task.done():
                return f"{task.get_name()} has ended"
        stalled = self._worklist.stalled if self._worklist is not None else 0.0
        if stalled > STALLED_SECONDS:
            return f"nothing was looked at for {stalled:.0f} seconds"
        return None

    async def stop(self) -> None:
        tasks = [*self._beginning, *self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for part in (self._reporters, self._api):
            if part is not None:
                await part.close()
        if self._server is not None:
            await self._server.cleanup()

    def noticed(self, kind: str, namespace: str, name: str, event: Mapping[str, Any]) -> None:
        """What Kopf saw of a resource."""
        assert self._reconciler is not None
        key = (kind, namespace, name)
        seen = self._reconciler.deleted if event["type"] == "DELETED" else self._reconciler.seen
        if seen(key, event["object"]):
            self._look_at(key)

    def _child_changed(self, owner: Owner) -> None:
        """Of a relay or of a replay, which may be called the same."""
        assert self._reconciler is not None
        for kind in (RELAYS, REPLAYS):
            key = (kind.name, *owner)
            if self._reconciler.knows(key):  # else it is looked at when Kopf tells of it
                self._look_at(key)

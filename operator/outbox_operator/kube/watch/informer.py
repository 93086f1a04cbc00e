"""
Informers: the children of our resources and their pods, kept up to date by watches.

They request only objects with our label: in a cluster with ten thousand pods the operator receives
only its own. Kopf watches the custom resources themselves. It cannot replace the informers: it
misses what is deleted while its watch is interrupted, and does not report when everything is
listed. "Two kinds of watches" in docs/architecture.md has the measurements.
"""

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Callable, Iterable

from outbox_operator.kube.api import Api, ApiError, JsonObject, Unreachable
from outbox_operator.kube.kinds import ObjectKind
from outbox_operator.kube.watch.watches import Watches
from outbox_operator.shared.names import MANAGED_BY, OWNER

log = logging.getLogger("outbox.operator")

SELECTOR = ",".join(f"{key}={value}" for key, value in MANAGED_BY.items())
FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 10.0
UNKNOWN_KIND_SECONDS = 30.0
"""How often to check whether the cluster has a kind that belongs to another operator. Also how long
a kind that was there must be missing before we do without it: an API server that has just started
does not serve all kinds yet."""
DELETED_SECONDS = 60.0
"""How long the last state of a deleted object is kept: the kubelet writes how a pod's containers
ended, and deletes the pod in the same moment."""

Owner = tuple[str, str]
"""Namespace and name of a resource."""


class Informer:
    """One kind, in one namespace or in all."""

    def __init__(
        self,
        api: Api,
        kind: ObjectKind,
        namespace: str | None,
        changed: Callable[[Owner], None],
        watches: Watches,
    ) -> None:
        self.kind = kind
        self._api = api
        self.place = namespace
        self._path = kind.path(namespace)
        self._changed = changed
        self._found: dict[Owner, JsonObject] = {}
        self._of: dict[Owner, set[Owner]] = {}
        self._versions: dict[Owner, int] = {}
        """By resource that has objects here: the number of the last change of one of them."""
        self._changes = 0
        self._deleted: dict[Owner, tuple[float, JsonObject]] = {}
        """With the time of their deletion, the earliest first."""
        self._watches = watches
        self.synced = asyncio.Event()
        self.served = False
        """The cluster has this kind, and we watch it."""
        self.known = asyncio.Event()
        """Set from outside: the cluster has the kind now, so check at once."""

    def of(self, owner: Owner) -> list[JsonObject]:
        """The objects that belong to a resource."""
        return [self._found[key] for key in sorted(self._of.get(owner, ()))]

    def version(self, owner: Owner) -> int:
        """A number that changes with each object that belongs to a resource, and is never used
        again; 0: the resource has no objects."""
        return self._versions.get(owner, 0)

    def deleted(self, owner: Owner) -> list[JsonObject]:
        """The last states of those that were deleted a moment ago."""
        self._drop_old()
        return [body for _, body in self._deleted.values() if owner_of(body) == owner]

    def _drop_old(self) -> None:
        for key, (at, _) in list(self._deleted.items()):
            if time.monotonic() - at < DELETED_SECONDS:
                break
            del self._deleted[key]

    async def run(self) -> None:
        """Never returns. When the server restarts, or no longer has the changes since our last
        one, everything is listed again."""
        pause = FIRST_PAUSE_SECONDS
        last_known = 0.0
        while True:
            since = math.inf
            try:
                version = await self._list()
                since = time.monotonic()
                while True:
                    last_known = time.monotonic()
                    version = await self._watch(version)
            except ApiError as error:
                missing = self.kind.optional and error.status in (403, 404)
                if missing and time.monotonic() - last_known >= UNKNOWN_KIND_SECONDS:
                    self._do_without(error)
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(UNKNOWN_KIND_SECONDS):
                            await self.known.wait()
                    self.known.clear()
                    continue
                if error.status != 410:  # "Gone" is normal: the server no longer has our version
                    self._watches.fails(self.kind, self.place, error)
            except Unreachable as error:
                self._watches.fails(self.kind, self.place, error)
            except Exception as error:  # otherwise the watch would end, and nobody would notice
                self._watches.fails(self.kind, self.place, error)
                log.exception(
                    "a defect while watching %s; trying again",
                    self.kind.plural,
                    extra={"event": "defect", "namespace": self.place or "*"},
                )
            if time.monotonic() - since > LONGEST_PAUSE_SECONDS:
                pause = FIRST_PAUSE_SECONDS  # it worked for a while
            await asyncio.sleep(pause)
            pause = min(LONGEST_PAUSE_SECONDS, pause * 2)

    def _do_without(self, error: ApiError) -> None:
        """Nobody waits for a kind that the cluster does not have, or that we may not read."""
        if error.status == 403 and (self.served or not self.synced.is_set()):
            log.warning(
                "cannot watch %s: %s; going on without it",
                self.kind.plural,
                error,
                extra={"event": "watch", "namespace": self.place or "*"},
            )
        for key in list(self._found):
            self._forget(key)
        self.served = False
        self.synced.set()

    async def _list(self) -> str:
        listed = await self._api.get(self._path, {"labelSelector": SELECTOR})
        # A list gives the kind of its items only once. A watch gives it with each, and so do we.
        type_ = {"apiVersion": listed["apiVersion"], "kind": self.kind.name}
        seen = {key_of(body): {**type_, **body} for body in listed.get("items") or ()}
        for key in [key for key in self._found if key not in seen]:
            self._forget(key)
        for body in seen.values():
            self._note(body)
        self.served = True
        self.synced.set()
        version: str = listed["metadata"]["resourceVersion"]
        return version

    async def _watch(self, version: str) -> str:
        query = {
            "labelSelector": SELECTOR,
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
        }
        async for event in self._api.watch(self._path, query, self._works):
            body = event["object"]
            match event["type"]:
                case "ERROR":
                    raise ApiError(
                        body.get("code", 500),
                        body.get("reason", ""),
                        body.get("message", ""),
                        frozenset(),
                    )
                case "DELETED":
                    self._drop_old()
                    self._deleted.pop(key_of(body), None)
                    self._deleted[key_of(body)] = time.monotonic(), body
                    self._forget(key_of(body))
                case "ADDED" | "MODIFIED":
                    self._note(body)
            version = body["metadata"]["resourceVersion"]
        return version

    def _works(self) -> None:
        """Only now: with the right to list but not to watch, no change would arrive."""
        self._watches.works(self.kind, self.place)

    def _note(self, body: JsonObject) -> None:
        key = key_of(body)
        before = self._found.get(key)
        if before and version_of(before) == version_of(body):
            return
        body["metadata"].pop("managedFields", None)  # most of the size, and nobody needs it
        owner = owner_of(body)
        if before and (old := owner_of(before)) != owner:
            self._part(old, key)
        self._found[key] = body
        self._of.setdefault(owner, set()).add(key)
        self._note_change(owner)

    def _forget(self, key: Owner) -> None:
        body = self._found.pop(key, None)
        if body is not None:
            self._part(owner_of(body), key)

    def _part(self, owner: Owner, key: Owner) -> None:
        """An object no longer belongs to that resource."""
        mine = self._of.get(owner, set())
        mine.discard(key)
        self._note_change(owner)
        if not mine:
            self._of.pop(owner, None)
            self._versions.pop(owner, None)

    def _note_change(self, owner: Owner) -> None:
        self._changes += 1
        self._versions[owner] = self._changes
        self._changed(owner)


class Informers:
    """All kinds, in all watched namespaces."""

    def __init__(
        self,
        api: Api,
        kinds: Iterable[ObjectKind],
        namespaces: Iterable[str],
        changed: Callable[[Owner], None],
        watches: Watches,
    ) -> None:
        self.places: list[str | None] = [*namespaces] or [None]
        """Namespaces; None: all of them."""
        self._kinds = tuple(kinds)
        self._all = [
            Informer(api, kind, place, changed, watches)
            for kind in self._kinds
            for place in self.places
        ]
        self._at = {(i.kind.name, i.place): i for i in self._all}
        for informer in self._all:
            watches.expect(informer.kind, informer.place)

    def start(self) -> list[asyncio.Task[None]]:
        return [asyncio.create_task(i.run(), name=f"watch {i.kind.plural}") for i in self._all]

    async def synced(self, place: str | None) -> None:
        """Wait for this place only: a namespace that is gone, or that we may not read, must not
        hold up the others."""
        for informer in self._all:
            if informer.place == place:
                await informer.synced.wait()

    def _watching(self, kind: str, owner: Owner) -> Informer | None:
        """None: its namespace is not watched."""
        return self._at.get((kind, None)) or self._at.get((kind, owner[0]))

    def of(self, kind: str, owner: Owner) -> list[JsonObject]:
        informer = self._watching(kind, owner)
        return informer.of(owner) if informer else []

    def version(self, owner: Owner) -> tuple[int, ...]:
        """Of all objects that belong to a resource: it changes with each of them."""
        found = (self._watching(kind.name, owner) for kind in self._kinds)
        return tuple(i.version(owner) for i in found if i is not None)

    def deleted(self, kind: str, owner: Owner) -> list[JsonObject]:
        """The last states of those that were deleted a moment ago, as far as the watch showed
        them."""
        informer = self._watching(kind, owner)
        return informer.deleted(owner) if informer else []

    def served(self, kind: str) -> bool:
        return any(i.served for i in self._all if i.kind.name == kind)

    def known(self, kind: str) -> None:
        """The cluster has this kind now: do not wait for the next check."""
        for informer in self._all:
            if informer.kind.name == kind:
                informer.known.set()


def key_of(body: JsonObject) -> Owner:
    return body["metadata"]["namespace"], body["metadata"]["name"]


def version_of(body: JsonObject) -> str:
    version: str = body["metadata"]["resourceVersion"]
    return version


def owner_of(body: JsonObject) -> Owner:
    """The resource that it belongs to: by our annotation or, if somebody removed that, by the owner
    reference."""
    metadata = body["metadata"]
    name = (metadata.get("annotations") or {}).get(OWNER)
    if name is None:
        owners = metadata.get("ownerReferences") or ({"name": ""},)
        name = owners[0]["name"]
    return metadata["namespace"], name

"""
Probes of what Kopf watches: the custom resources.

Kopf retries for ever and does not report whether its watches work. So a probe requests the same
with the same rights: a list of one, and the start of a watch. Kopf must report the listed resource
soon, too; otherwise it is Kopf that does not work. Started by `program`.
"""

import asyncio
import logging
import time
from collections.abc import Callable

from outbox_operator.kube.api import Api, ApiError, JsonObject, Unreachable
from outbox_operator.kube.kinds import ObjectKind
from outbox_operator.kube.watch.informer import key_of
from outbox_operator.kube.watch.watches import Place, Watches
from outbox_operator.shared.objects import Key

log = logging.getLogger("outbox.operator")

PROBE_SECONDS = 30.0
"""Between two probes of a working watch: a right that is revoked is noticed within this time."""
FAILED_PROBE_SECONDS = 5.0
"""Between two probes of a watch that does not work."""
UNREPORTED_SECONDS = 90.0
"""How long Kopf may take to report a resource that exists: it pauses for 20 seconds at most."""


class Unreported(Exception):
    """A resource exists, and Kopf has not reported it."""


class Probe:
    def __init__(
        self,
        api: Api,
        kind: ObjectKind,
        place: Place,
        watches: Watches,
        knows: Callable[[Key], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api, self._kind, self._place = api, kind, place
        self._watches = watches
        self._knows = knows
        self._clock = clock
        self._unreported: tuple[str, float] | None = None
        """The uid of a resource that Kopf has not reported, and since when."""

    async def run(self) -> None:
        """Never returns."""
        while True:
            pause = FAILED_PROBE_SECONDS
            try:
                await self.ask()
                self._watches.works(self._kind, self._place)
                pause = PROBE_SECONDS
            except (ApiError, Unreachable, Unreported) as error:
                self._watches.fails(self._kind, self._place, error)
            except Exception as error:  # otherwise the probe would end, and nobody would notice
                log.exception("a defect while probing the watch of %s", self._kind.plural)
                self._watches.fails(self._kind, self._place, error)
            await asyncio.sleep(pause)

    async def ask(self) -> None:
        path = self._kind.path(self._place)
        listed = await self._api.get(path, {"limit": "1"})
        await self._api.begin_watch(path, listed["metadata"]["resourceVersion"])
        self._compare(listed.get("items") or [])

    def _compare(self, items: list[JsonObject]) -> None:
        now = self._clock()
        missing = [b for b in items if not self._knows((self._kind.name, *key_of(b)))]
        if not missing:
            self._unreported = None
            return
        uid = missing[0]["metadata"]["uid"]
        if self._unreported is None or self._unreported[0] != uid:
            self._unreported = uid, now
        if now - self._unreported[1] > UNREPORTED_SECONDS:
            namespace, name = key_of(missing[0])
            raise Unreported(
                f"{self._kind.name} {namespace}/{name} exists, and Kopf has not reported it"
            )

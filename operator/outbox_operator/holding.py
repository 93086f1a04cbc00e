"""
Holding: the finalizer of relays that are to be forgotten, and an account of those that are gone.

Called by `reconcile`. When to hold and when to let go is decided in `decide.deletion`; here it is
written, and what came too late is told.
"""

import contextlib
import logging
from datetime import UTC, datetime

from outbox_operator.cluster.api import Unreachable
from outbox_operator.cluster.client import Writer
from outbox_operator.cluster.kinds import RELAYS
from outbox_operator.decide.deletion import (
    RETIRE,
    asks_to_be_forgotten,
    decide_finalizers,
    is_leaving,
    retirement,
    skipped,
)
from outbox_operator.reconcile_replay import Body, Key
from outbox_operator.resources.conditions import Reason
from outbox_operator.resources.objects import Resource
from outbox_operator.resources.relay import OutboxRelay, RelayStatus
from outbox_operator.seen import Seen

log = logging.getLogger("outbox.operator")


class Holder:
    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._skipped: dict[Key, Body] = {}
        """Relays that are gone and were not forgotten, though they asked for it: to be told."""
        self._accounted: set[str] = set()
        """By uid: relays that were forgotten, or of which it was told that they were not. Needed
        until their deletion is seen, also if a look has found them gone before."""

    async def hold(self, relay: OutboxRelay) -> OutboxRelay:
        """With the finalizer that its policy asks for. Before all else: as long as it is not there
        the resource may go at any time, and its generation does not count as observed."""
        finalizers = decide_finalizers(relay, Seen())
        if is_leaving(relay) or finalizers == list(relay.metadata.finalizers):
            return relay
        done = await self._writer.hold(RELAYS, relay, finalizers)
        version = done["metadata"]["resourceVersion"]
        update = {"finalizers": tuple(finalizers), "resource_version": version}
        return relay.model_copy(update={"metadata": relay.metadata.model_copy(update=update)})

    async def hold_invalid(self, resource: Resource, body: Body, before: RelayStatus) -> None:
        """One whose spec cannot be used. If none ever could there are no pods, and nothing that the
        database could forget: it may go."""
        meta = resource.metadata
        wanted = asks_to_be_forgotten(body) and before.relay_name is not None
        if wanted and meta.deletion_timestamp is None and RETIRE not in meta.finalizers:
            await self._writer.hold(RELAYS, resource, [*meta.finalizers, RETIRE])

    async def let_go(self, relay: OutboxRelay, seen: Seen) -> bool:
        """If nothing is left to do for one that is being deleted. Returns whether it is gone."""
        finalizers = decide_finalizers(relay, seen)
        if not is_leaving(relay) or finalizers == list(relay.metadata.finalizers):
            return False
        if retirement(relay, seen) == "Complete":
            self._accounted.add(relay.metadata.uid)
        await self._writer.hold(RELAYS, relay, finalizers)
        return not finalizers

    def told(self, uid: str, status: RelayStatus) -> None:
        """What people have heard of a relay while it was there."""
        if any(c.reason == Reason.RETIREMENT_SKIPPED for c in status.conditions):
            self._accounted.add(uid)

    def deleted(self, key: Key, last: Body) -> bool:
        """A relay that is gone, as it was last. Returns whether there is something to tell."""
        uid = last["metadata"]["uid"]
        accounted = uid in self._accounted
        self._accounted.discard(uid)
        if accounted or not asks_to_be_forgotten(last):
            return False
        self._skipped[key] = last
        return True

    async def tell_skipped(self, key: Key) -> None:
        """The finalizer came too late, or somebody removed it. There is no status any more; an
        Event is kept for an hour, and the log for longer."""
        last = self._skipped.pop(key, None)
        if last is None:
            return
        resource = without_spec(last)
        meta = resource.metadata
        found = skipped(last["spec"].get("relayName") or f"{meta.namespace}/{meta.name}")
        log.warning(
            "OutboxRelay %s is gone: %s",
            meta.name,
            found.message,
            extra={"event": "skipped", "namespace": meta.namespace, "resource": meta.name},
        )
        with contextlib.suppress(Unreachable):
            now = datetime.now(UTC)
            await self._writer.tell(resource, found.reason, found.message, warning=True, now=now)


def without_spec(body: Body) -> Resource:
    """Of one whose spec cannot be used, or counts no more."""
    return Resource.model_validate(
        {k: body[k] for k in ("apiVersion", "kind", "metadata")}, by_alias=True
    )

"""
The finalizer of relays that the database is to forget, and an account of those that are gone.

Called by `reconciler`. When to hold and when to release a relay is decided in `decide.deletion`;
here it is written, and what came too late is reported.
"""

import contextlib
import logging
from datetime import UTC, datetime

from outbox_operator.kube.api import Unreachable
from outbox_operator.kube.kinds import RELAYS
from outbox_operator.kube.writer import Writer
from outbox_operator.relay.decide.deletion import (
    RETIRE,
    asks_to_be_forgotten,
    decide_finalizers,
    is_leaving,
    retirement,
    skipped,
)
from outbox_operator.relay.seen import RelaySeen
from outbox_operator.relay.spec.resource import OutboxRelay, RelayStatus
from outbox_operator.shared.notices import Notice
from outbox_operator.shared.objects import Body, Key, Resource, without_spec
from outbox_operator.shared.reasons import Reason

log = logging.getLogger("outbox.operator")


class Finalizer:
    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._skipped: dict[Key, Body] = {}
        """Relays that are gone and were not forgotten, though they asked for it: to be reported."""
        self._accounted: set[str] = set()
        """By uid: relays that were forgotten, or of which it was reported that they were not.
        Needed until their deletion is seen, also if a look has found them gone before."""

    async def hold(self, relay: OutboxRelay) -> OutboxRelay:
        """With the finalizer that its policy asks for. Before anything else: as long as it is not
        there the resource may go at any time, and its generation does not count as observed."""
        finalizers = decide_finalizers(relay, RelaySeen())
        if is_leaving(relay) or finalizers == list(relay.metadata.finalizers):
            return relay
        done = await self._writer.set_finalizers(RELAYS, relay, finalizers)
        version = done["metadata"]["resourceVersion"]
        update = {"finalizers": tuple(finalizers), "resource_version": version}
        return relay.model_copy(update={"metadata": relay.metadata.model_copy(update=update)})

    async def hold_invalid(self, resource: Resource, body: Body, before: RelayStatus) -> None:
        """One whose spec cannot be used. If none ever could there are no pods, and nothing that the
        database could forget: it may go."""
        meta = resource.metadata
        wanted = asks_to_be_forgotten(body) and before.relay_name is not None
        if wanted and meta.deletion_timestamp is None and RETIRE not in meta.finalizers:
            await self._writer.set_finalizers(RELAYS, resource, [*meta.finalizers, RETIRE])

    async def release(self, relay: OutboxRelay, seen: RelaySeen) -> bool:
        """If nothing is left to do for one that is being deleted. Returns whether it is gone."""
        finalizers = decide_finalizers(relay, seen)
        if not is_leaving(relay) or finalizers == list(relay.metadata.finalizers):
            return False
        if retirement(relay, seen) == "Complete":
            self._accounted.add(relay.metadata.uid)
        await self._writer.set_finalizers(RELAYS, relay, finalizers)
        return not finalizers

    def reported(self, uid: str, status: RelayStatus) -> None:
        """What people were shown of a relay while it was there."""
        if any(c.reason == Reason.RETIREMENT_SKIPPED for c in status.conditions):
            self._accounted.add(uid)

    def deleted(self, key: Key, last: Body) -> bool:
        """A relay that is gone, as it was last. Returns whether there is something to report."""
        uid = last["metadata"]["uid"]
        accounted = uid in self._accounted
        self._accounted.discard(uid)
        if accounted or not asks_to_be_forgotten(last):
            return False
        self._skipped[key] = last
        return True

    async def report_skipped(self, key: Key) -> None:
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
        notice = Notice(found.reason, found.message, warning=True)
        with contextlib.suppress(Unreachable):
            await self._writer.announce(resource, [notice], datetime.now(UTC))

"""
The finalizer of relays with deletionPolicy: Delete, and a report about those that were not retired.

Called by `reconciler`. `decide.deletion` decides when to hold and when to release a relay; this
module writes the finalizer, and reports relays that were gone before it was set.
"""

import contextlib
import logging
from datetime import UTC, datetime

from outbox_operator.kube.api import Unreachable
from outbox_operator.kube.writer import Writer
from outbox_operator.relay.decide.deletion import (
    RETIRE,
    decide_finalizers,
    is_being_deleted,
    must_be_retired,
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
        """Relays that are gone without being retired, against their policy: to be reported."""
        self._accounted: set[str] = set()
        """By uid: relays that were retired, or were reported as not retired. Needed until their
        deletion is seen, even if a reconcile has found them gone before."""

    async def hold(self, relay: OutboxRelay) -> OutboxRelay:
        """The relay with the finalizer that its policy needs. Called before anything else: without
        it the resource may be gone at any time, and its generation does not count as observed."""
        finalizers = decide_finalizers(relay, RelaySeen())
        if is_being_deleted(relay) or finalizers == list(relay.metadata.finalizers):
            return relay
        done = await self._writer.set_finalizers(relay, finalizers)
        version = done["metadata"]["resourceVersion"]
        update = {"finalizers": tuple(finalizers), "resource_version": version}
        return relay.model_copy(update={"metadata": relay.metadata.model_copy(update=update)})

    async def hold_invalid(self, resource: Resource, body: Body, before: RelayStatus) -> None:
        """For an unusable spec. If no spec was ever usable, there are no pods and nothing to
        retire: the resource may go."""
        meta = resource.metadata
        wanted = must_be_retired(body) and before.relay_name is not None
        if wanted and meta.deletion_timestamp is None and RETIRE not in meta.finalizers:
            await self._writer.set_finalizers(resource, [*meta.finalizers, RETIRE])

    async def release(self, relay: OutboxRelay, seen: RelaySeen) -> bool:
        """Remove the finalizer if nothing is left to do before the deletion. Returns whether the
        relay is gone."""
        finalizers = decide_finalizers(relay, seen)
        if not is_being_deleted(relay) or finalizers == list(relay.metadata.finalizers):
            return False
        if retirement(relay, seen) == "Complete":
            self._accounted.add(relay.metadata.uid)
        await self._writer.set_finalizers(relay, finalizers)
        return not finalizers

    def reported(self, uid: str, status: RelayStatus) -> None:
        """The status that was reported while the relay existed."""
        if any(c.reason == Reason.RETIREMENT_SKIPPED for c in status.conditions):
            self._accounted.add(uid)

    def deleted(self, key: Key, last: Body) -> bool:
        """A relay is gone; `last` is its last state. Returns whether there is something to
        report."""
        uid = last["metadata"]["uid"]
        accounted = uid in self._accounted
        self._accounted.discard(uid)
        if accounted or not must_be_retired(last):
            return False
        self._skipped[key] = last
        return True

    async def report_skipped(self, key: Key) -> None:
        """The finalizer was set too late, or somebody removed it. There is no status any more; an
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

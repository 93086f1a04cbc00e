"""
Reconcile: gather, decide, apply; then say how it stands. Of relays here, of replays in
`reconcile_replay`.

Called by the worklist for one resource at a time. Between two looks it remembers what only saves
work or damps: after a restart of the operator everything is found again in the cluster.
"""

import logging
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime

from pydantic import ValidationError

from outbox_operator.cluster.api import ApiError, Unreachable
from outbox_operator.cluster.client import Writer
from outbox_operator.cluster.gather import Gatherer
from outbox_operator.cluster.kinds import RELAYS
from outbox_operator.decide.autoscaling import Memory, Scale, scale
from outbox_operator.decide.backlog import load_of
from outbox_operator.decide.children import (
    Children,
    asked_replicas,
    decide_children,
    decide_finalizers,
    fixed_replicas,
    how_to_let_go,
    is_drained,
    is_leaving,
)
from outbox_operator.decide.notices import Notice, Told, decide_notices
from outbox_operator.decide.status import count_pods, decide_invalid, decide_status
from outbox_operator.metrics import Metrics
from outbox_operator.reconcile_replay import Body, Key, ReplayReconciler
from outbox_operator.resources.objects import Resource
from outbox_operator.resources.relay import OutboxRelay, RelayStatus
from outbox_operator.seen import Seen
from outbox_operator.settings import OperatorSettings
from outbox_relay.contract.settings import explain

log = logging.getLogger("outbox.operator")


@dataclass
class Remembered:
    """Of one resource, from look to look."""

    uid: str
    memory: Memory = field(default_factory=Memory)
    made_of: object = None
    children: Children | None = None
    """What was decided last, and of what: as long as that stays, so does this."""
    told: Told | None = None


class Reconciler:
    def __init__(
        self,
        settings: OperatorSettings,
        gatherer: Gatherer,
        writer: Writer,
        metrics: Metrics,
        replays: ReplayReconciler,
    ) -> None:
        self._settings = settings
        self._gatherer = gatherer
        self._writer = writer
        self._metrics = metrics
        self._replays = replays
        self._bodies: dict[Key, Body] = {}
        self._remembered: dict[Key, Remembered] = {}

    def seen(self, key: Key, body: Body | None) -> bool:
        """A resource as the API server has it now; None: it is gone. Returns whether it is to be
        looked at: what we wrote into its status ourselves is no news."""
        before = self._bodies.get(key)
        if body is None:
            self._bodies.pop(key, None)
            if gone := self._remembered.pop(key, None):
                self._writer.forget(gone.uid)
            self._replays.forget(key)
            self._metrics.forget(key)
            return False
        self._bodies[key] = body
        return is_news(before, body)

    def knows(self, key: Key) -> bool:
        return key in self._bodies

    def known(self) -> list[Key]:
        return list(self._bodies)

    async def look(self, key: Key) -> float | None:
        body = self._bodies.get(key)
        if body is None:
            return None
        kind, namespace, name = key
        start = time.monotonic()
        outcome = "failed"
        try:
            look = self._relay if kind == RELAYS.name else self._replays.look
            again = await look(key, self._writer.latest(body))
            outcome = "done"
            return again
        except ApiError as error:
            if error.status in (404, 409):  # gone or changed meanwhile
                outcome = "outdated"
            if error.is_absence:
                self._gone(key, body)
                return None
            self._complain(
                key, str(error), logging.INFO if outcome == "outdated" else logging.WARNING
            )
            raise
        except Unreachable as error:
            self._complain(key, f"the API server does not answer: {error}", logging.WARNING)
            raise
        except Exception:
            log.exception(
                "a defect while looking after %s %s",
                kind,
                name,
                extra={"happening": "defect", "namespace": namespace, "resource": name},
            )
            raise
        finally:
            self._metrics.looked(kind, outcome, time.monotonic() - start)

    def _gone(self, key: Key, body: Body) -> None:
        """Kopf does not tell of what was deleted while it could not watch; it does tell of another
        one of that name, which is not forgotten."""
        if self._bodies.get(key) is body:
            self.seen(key, None)

    def _complain(self, key: Key, why: str, level: int) -> None:
        kind, namespace, name = key
        log.log(
            level,
            "could not look after %s %s: %s; trying again",
            kind,
            name,
            why,
            extra={"happening": "retry", "namespace": namespace, "resource": name},
        )

    async def _relay(self, key: Key, body: Body) -> float | None:
        now = datetime.now(UTC)
        uid = body["metadata"]["uid"]
        remembered = self._remembered.get(key)
        if remembered is None or remembered.uid != uid:
            remembered = self._remembered[key] = Remembered(uid)
        try:
            relay = OutboxRelay.parse(body)
        except ValidationError as error:
            await self._refuse(key, body, error, remembered, now)
            return None

        seen = await self._gatherer.relay(relay)
        replicas, scaled = self._replicas(relay, seen, remembered, now)
        children = self._children(relay, seen, remembered, replicas)

        if lacks(seen, children) and not await self._gatherer.is_there(RELAYS, relay):
            # Children of a dead owner would be removed, and made again.
            raise ApiError(404, "NotFound", "it is gone", frozenset())
        asked = asked_replicas(relay, seen)
        seen = await self._writer.apply(relay, children.wanted, seen)
        await self._writer.remove(relay, children.unwanted, seen)
        finalizers = decide_finalizers(relay, seen)
        if finalizers != list(relay.metadata.finalizers):
            await self._writer.hold(RELAYS, relay, finalizers)
            if not finalizers and relay.metadata.deletion_timestamp is not None:
                return None  # it is gone: there is nobody left to report to

        status = decide_status(relay, seen, replicas, scaled, now)
        told = remembered.told or Told.of(relay.status)
        notices, remembered.told = decide_notices(told, status, asked, replicas, scaled, now)
        await self._tell(key, relay, body, status, notices, now)
        return self._next_look(relay, seen, status, replicas)

    async def _tell(
        self,
        key: Key,
        resource: Resource,
        body: Body,
        status: RelayStatus,
        notices: list[Notice],
        now: datetime,
    ) -> None:
        for notice in notices:
            await self._writer.tell(
                resource, notice.reason, notice.message, warning=notice.warning, now=now
            )
        await self._writer.report(RELAYS, resource, status.written(), body.get("status") or {})
        self._metrics.judged(key, {c.type: c.status for c in status.conditions})

    def _replicas(
        self, relay: OutboxRelay, seen: Seen, remembered: Remembered, now: datetime
    ) -> tuple[int, Scale | None]:
        fixed = fixed_replicas(relay)
        if fixed is not None:
            remembered.memory = Memory()
            return fixed, None
        assert relay.spec.autoscaling is not None
        asked = asked_replicas(relay, seen)
        if asked is None:
            return relay.spec.autoscaling.min_replicas, None
        ready = count_pods(relay, seen, asked).ready
        decision = scale(
            relay.spec.autoscaling, asked, ready, load_of(seen.reports), remembered.memory, now
        )
        remembered.memory = decision.memory
        return decision.replicas, decision

    def _children(
        self, relay: OutboxRelay, seen: Seen, remembered: Remembered, replicas: int
    ) -> Children:
        made_of = (
            relay.metadata.generation,
            is_leaving(relay) and is_drained(relay, seen),
            replicas,
            tuple(seen.secrets),
        )
        if remembered.children is None or remembered.made_of != made_of:
            remembered.made_of = made_of
            remembered.children = decide_children(relay, seen, self._settings, replicas)
        return remembered.children

    def _next_look(
        self, relay: OutboxRelay, seen: Seen, status: RelayStatus, replicas: int
    ) -> float:
        backlog = status.backlog
        reported = bool(seen.reports) and backlog is not None and backlog.pending == 0
        calm = (
            (reported or replicas == 0) and status.ready_replicas == replicas and not seen.refusals
        )
        return (self._settings.idle_look if calm else self._settings.look).total_seconds()

    async def _refuse(
        self,
        key: Key,
        body: Body,
        error: ValidationError,
        remembered: Remembered,
        now: datetime,
    ) -> None:
        """A spec that the schema let through and we cannot use."""
        why = "; ".join(line.strip() for line in explain(error).splitlines())
        resource = Resource.model_validate(
            {k: body[k] for k in ("apiVersion", "kind", "metadata")}, by_alias=True
        )
        before = RelayStatus.model_validate(body.get("status") or {})
        if held := how_to_let_go(resource):
            why = f"{why}; {held}"
        status = decide_invalid(before, resource.metadata.generation, why, now)
        told = remembered.told or Told.of(before)
        notices, remembered.told = decide_notices(told, status, None, 0, None, now)
        await self._tell(key, resource, body, status, notices, now)


def is_news(before: Body | None, body: Body) -> bool:
    """Whether somebody else wrote it. Of what changes with every look nobody needs to be told: the
    next look would follow at once, and write again."""
    names = ("uid", "generation", "deletionTimestamp", "finalizers", "labels", "annotations")
    return before is None or any(
        before["metadata"].get(name) != body["metadata"].get(name) for name in names
    )


def lacks(seen: Seen, children: Children) -> bool:
    """Whether one of them is still to be made."""
    return any(seen.child(c["kind"], c["metadata"]["name"]) is None for c in children.wanted)

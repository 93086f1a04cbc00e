"""
Reconcile: gather, decide, apply; then say how it stands. Of relays here, of replays in
`reconcile_replay`.

Called by the worklist for one resource at a time. Between two looks it remembers what only saves
work or damps: after a restart of the operator everything is found again in the cluster.
"""

import contextlib
import logging
import time
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from pydantic import ValidationError

from outbox_core.contract.settings import explain
from outbox_operator.cluster.api import ApiError, Unreachable
from outbox_operator.cluster.client import Writer
from outbox_operator.cluster.gather import Gatherer
from outbox_operator.cluster.kinds import RELAYS
from outbox_operator.decide.autoscaling import Memory, Scale, scale
from outbox_operator.decide.backlog import load_of
from outbox_operator.decide.children import Children, decide_children, fixed_replicas
from outbox_operator.decide.deletion import (
    asked_replicas,
    how_to_let_go,
    is_leaving,
    is_retiring,
)
from outbox_operator.decide.forbidden import without_forbidden
from outbox_operator.decide.leftovers import decide_leftovers
from outbox_operator.decide.notices import Notice, Told, decide_notices
from outbox_operator.decide.reaping import reaper_rests
from outbox_operator.decide.rollout import count_pods
from outbox_operator.decide.staging import (
    Turns,
    comes_from_the_operator,
    what_waits,
    without_staged,
)
from outbox_operator.decide.status import decide_hindered, decide_invalid, decide_status
from outbox_operator.holding import Holder, without_spec
from outbox_operator.ignoring import Ignoring
from outbox_operator.metrics import Metrics
from outbox_operator.reconcile_replay import Body, Key, ReplayReconciler
from outbox_operator.resources.conditions import Reason, RelayCondition
from outbox_operator.resources.objects import Resource
from outbox_operator.resources.relay import OutboxRelay, RelayStatus
from outbox_operator.restraining import Restrainer, adopts
from outbox_operator.seen import Restraint, Seen
from outbox_operator.settings import OperatorSettings

log = logging.getLogger("outbox.operator")

OF_A_CHANGE = (RelayCondition.PROGRESSING, RelayCondition.RECONCILING, RelayCondition.STALLED)
"""Conditions about what is being carried out."""
LONGEST_REFUSED = 60.0
"""Seconds, after which a child that the API server refuses is tried again at the latest."""


@dataclass
class Remembered:
    """Of one resource, from look to look."""

    uid: str
    memory: Memory = field(default_factory=Memory)
    made_of: object = None
    children: Children | None = None
    """What was decided last, and of what: as long as that stays, so does this."""
    told: Told | None = None
    refused: int = 0
    """How often in a row the API server did not take a child."""


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
        self._holder = Holder(writer)
        self._ignoring = Ignoring(writer)
        self._restrainer = Restrainer(settings, writer)
        self._turns = Turns(settings.rollout_delay)

    def seen(self, key: Key, body: Body | None) -> bool:
        """A resource as the API server has it now; None: it is gone. Returns whether it is to be
        looked at: what we wrote into its status ourselves is no news."""
        before = self._bodies.get(key)
        if body is None:
            self._bodies.pop(key, None)
            if gone := self._remembered.pop(key, None):
                self._writer.forget(gone.uid)
                self._ignoring.forget(gone.uid)
                self._restrainer.forget(gone.uid)
            self._replays.forget(key)
            self._turns.done(key[1:])
            self._metrics.forget(key)
            return False
        self._bodies[key] = body
        return is_news(before, body)

    def deleted(self, key: Key, last: Body) -> bool:
        """A resource that is gone, as it was last. Returns whether there is something to tell."""
        self.seen(key, None)
        return key[0] == RELAYS.name and self._holder.deleted(key, last)

    def knows(self, key: Key) -> bool:
        return key in self._bodies

    def known(self) -> list[Key]:
        return list(self._bodies)

    async def look(self, key: Key) -> float | None:
        await self._holder.tell_skipped(key)
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
            if error.status == 403 and kind == RELAYS.name:
                await self._hindered(body, error)
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
                extra={"event": "defect", "namespace": namespace, "resource": name},
            )
            raise
        finally:
            self._metrics.looked(kind, outcome, time.monotonic() - start)

    async def _hindered(self, body: Body, error: ApiError) -> None:
        """The log alone would not be seen by those whose relay it is."""
        body = self._writer.latest(body)
        before = RelayStatus.model_validate(body.get("status") or {})
        generation = body["metadata"].get("generation", 0)
        status = decide_hindered(before, generation, str(error), datetime.now(UTC))
        with contextlib.suppress(ApiError, Unreachable):  # it may be this very right
            await self._writer.report(
                RELAYS, without_spec(body), status.written(), body.get("status") or {}
            )

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
            extra={"event": "retry", "namespace": namespace, "resource": name},
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

        await self._ignoring.tell(relay, now)
        relay = await self._holder.hold(relay)
        seen = await self._gatherer.relay(relay)
        restraint = self._restrainer.restraint(relay, seen, now)
        if restraint is not None and restraint.reason == Reason.FORBIDDEN and is_leaving(relay):
            relay, restraint = without_forbidden(relay), None
        seen = replace(seen, restraint=restraint)
        replicas, scaled = self._replicas(relay, seen, remembered, now)
        children = self._children(relay, seen, remembered, replicas, now)
        if restraint is None:
            children, seen = self._staged(key, relay, children, seen, now)

        asked = asked_replicas(relay, seen)
        if restraint is None or not restraint.holds:
            seen = await self._apply(relay, children, seen, replicas)
        if await self._holder.let_go(relay, seen):
            return None  # it is gone: there is nobody left to report to

        status = decide_status(relay, seen, replicas, scaled, now)
        if restraint is not None and restraint.holds:
            status = as_far_as_done(relay, status, restraint)
        told = remembered.told or Told.of(relay.status)
        notices, remembered.told = decide_notices(told, status, asked, replicas, scaled, now)
        notices += self._restrainer.notices(relay)
        await self._tell(key, relay, body, status, notices, now)
        self._holder.told(uid, status)
        remembered.refused = remembered.refused + 1 if seen.refusals else 0
        again = self._next_look(seen, status, replicas, remembered.refused)
        return min(again, self._turns.left(key[1:], now))

    async def _apply(
        self, relay: OutboxRelay, children: Children, seen: Seen, replicas: int
    ) -> Seen:
        if lacks(seen, children) or adopts(seen, children.wanted, children.unwanted):
            # Children of a dead or dying owner would be removed, and made again.
            await self._gatherer.confirm(RELAYS, relay)
        seen = await self._writer.apply(relay, children.wanted, seen)
        leftovers = decide_leftovers(relay, seen, children, replicas)
        kept = await self._writer.remove(relay, [*children.unwanted, *leftovers], seen)
        return replace(seen, refusals=[*seen.refusals, *kept])

    def _staged(
        self, key: Key, relay: OutboxRelay, children: Children, seen: Seen, now: datetime
    ) -> tuple[Children, Seen]:
        """What may be written now, where the operator itself is what changed."""
        if not comes_from_the_operator(relay, seen, children.wanted):
            self._turns.done(key[1:])
            return children, seen
        turn = self._turns.of(key[1:], now)
        if turn <= now:
            return children, seen
        waiting = replace(children, wanted=without_staged(seen, children.wanted))
        return waiting, replace(seen, restraint=what_waits(turn, self._turns.pause))

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
        asked = asked_replicas(relay, seen)
        if is_leaving(relay) and not is_retiring(relay):
            return asked or 0, None  # nobody scales it any more
        if asked is not None and seen.restraint is not None and seen.restraint.holds:
            return asked, None  # nor does this operator now
        fixed = fixed_replicas(relay)
        if fixed is not None:
            remembered.memory = Memory()
            return fixed, None
        assert relay.spec.autoscaling is not None
        if asked is None:
            return relay.spec.autoscaling.min_replicas, None
        ready = count_pods(relay, seen, asked).ready
        decision = scale(
            relay.spec.autoscaling, asked, ready, load_of(seen.reports), remembered.memory, now
        )
        remembered.memory = decision.memory
        return decision.replicas, decision

    def _children(
        self, relay: OutboxRelay, seen: Seen, remembered: Remembered, replicas: int, now: datetime
    ) -> Children:
        if is_leaving(relay):  # then it is a matter of what is still there
            return decide_children(relay, seen, self._settings, replicas)
        rests = reaper_rests(relay, seen, replicas, now)
        made_of = (relay.metadata.generation, replicas, tuple(seen.secrets), rests)
        if remembered.children is None or remembered.made_of != made_of:
            remembered.made_of = made_of
            remembered.children = decide_children(
                relay, seen, self._settings, replicas, reaper_rests=rests
            )
        return remembered.children

    def _next_look(self, seen: Seen, status: RelayStatus, replicas: int, refused: int) -> float:
        look = self._settings.look.total_seconds()
        if refused:  # what is refused now is most likely refused again: a person must act
            return max(look, min(look * 2.0 ** min(refused - 1, 10), LONGEST_REFUSED))
        backlog = status.backlog
        reported = bool(seen.reports) and backlog is not None and backlog.pending == 0
        calm = (reported or replicas == 0) and status.ready_replicas == replicas
        return self._settings.idle_look.total_seconds() if calm else look

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
        resource = without_spec(body)
        before = RelayStatus.model_validate(body.get("status") or {})
        await self._holder.hold_invalid(resource, body, before)
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


def as_far_as_done(relay: OutboxRelay, status: RelayStatus, restraint: Restraint) -> RelayStatus:
    """What a person may rely on while nothing is written. A paused change is not observed; and of
    what goes on only the operator knows that is at work."""
    before = relay.status
    if restraint.reason == Reason.RECONCILE_PAUSED:
        return status.model_copy(update={"observed_generation": before.observed_generation})
    if restraint.reason != Reason.OTHER_OPERATOR:
        return status
    status = status.model_copy(update={"observed_generation": before.observed_generation})
    was = {c.type: c for c in before.conditions if c.type in OF_A_CHANGE}
    return status.model_copy(
        update={"conditions": tuple(was.get(c.type, c) for c in status.conditions)}
    )

"""
Reconcile a replay: gather, decide on the next step, apply it, report.

Called by `dispatch` for one replay at a time. An attempt is created before the status shows it: if
the operator ends in between, the next one finds the attempt, and does not create a second. Two
things are not in that order. Before an attempt is created, the replay is read once more, to confirm
that it still exists: only the decision shows that there will be an attempt. And the status is
judged after the writes, because it shows what the API server refused.
"""

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from pydantic import ValidationError

from outbox_operator.kinds import REPLAY
from outbox_operator.kube.writer import Writer
from outbox_operator.reconciling import KindReconciler, Reconciled
from outbox_operator.replay.decide.children import (
    ReplayChildren,
    decide_replay_children,
    only_removals,
)
from outbox_operator.replay.decide.gitops import (
    decide_kept_notices,
    why_it_stays,
    with_reason_to_stay,
)
from outbox_operator.replay.decide.next_reconcile import seconds_to_live, seconds_to_next_reconcile
from outbox_operator.replay.decide.step import (
    FINISHED,
    Leave,
    Step,
    as_paused,
    decide_step,
)
from outbox_operator.replay.events import decide_replay_notices
from outbox_operator.replay.gather import ReplayGatherer
from outbox_operator.replay.seen import ReplaySeen
from outbox_operator.replay.spec.resource import OutboxReplay, ReplayStatus
from outbox_operator.replay.status import decide_invalid_replay, decide_replay_status
from outbox_operator.settings import OperatorSettings
from outbox_operator.shared.notices import Notice, damped
from outbox_operator.shared.objects import Body, Key, why_invalid, without_spec
from outbox_operator.shared.pausing import is_paused
from outbox_operator.shared.reasons import EventReason
from outbox_operator.shared.restraining import adopts
from outbox_operator.shared.seen import Restraint


@dataclass
class ReplayMemory:
    """Of one replay, from one reconcile to the next."""

    announced: dict[str, datetime] = field(default_factory=dict)
    """By reason: when it was announced last."""


@dataclass(frozen=True)
class Plan:
    """What one reconcile decided."""

    restraint: Restraint | None
    step: Step
    children: ReplayChildren


class ReplayReconciler(KindReconciler[ReplayMemory]):
    def __init__(
        self, settings: OperatorSettings, gatherer: ReplayGatherer, writer: Writer
    ) -> None:
        super().__init__(REPLAY, settings, writer, ReplayMemory)
        self._gatherer = gatherer

    async def reconcile(self, key: Key, body: Body) -> Reconciled:
        now = datetime.now(UTC)
        memory = self._memory(key, body["metadata"]["uid"])
        try:
            replay = OutboxReplay.parse(body)
        except ValidationError as error:
            return await self._refuse(body, error, memory, now)
        if replay.status.phase in FINISHED:
            again = await self._finished(replay, body, now)
            return Reconciled(again, replay.status.conditions)
        seen = await self._gatherer.replay(replay)
        plan = self._decide(replay, seen, now)
        seen = await self._apply(replay, plan.children, seen)
        return await self._report_plan(replay, body, plan, seen, memory, now)

    async def lacks_right(self, body: Body, why: str) -> None:
        if (body.get("status") or {}).get("phase") not in FINISHED:  # that is never changed again
            await super().lacks_right(body, why)

    def _decide(self, replay: OutboxReplay, seen: ReplaySeen, now: datetime) -> Plan:
        restraint = self._restraint(replay, seen, now)
        step = decide_step(as_paused(replay) if is_paused(replay) else replay, seen, now)
        children = decide_replay_children(replay, seen, step, self._settings)
        if restraint is not None and restraint.blocks_writes:
            children = only_removals(children, step, restraint)
        return Plan(restraint, step, children)

    async def _apply(
        self, replay: OutboxReplay, children: ReplayChildren, seen: ReplaySeen
    ) -> ReplaySeen:
        """Returns what is seen afterwards, with the children that were refused."""
        if children.attempt is not None or adopts(seen, children.wanted):
            # An attempt of a deleted owner would replay until it is removed.
            await self._gatherer.confirm(replay)
        seen = await self._writer.apply(replay, children.wanted, seen)
        kept = await self._writer.remove(replay, children.unwanted, seen)
        seen = replace(seen, refusals=[*seen.refusals, *kept])
        if children.attempt is not None and not seen.refusals:
            refusal = await self._writer.create(replay, children.attempt)
            seen = replace(seen, refusals=[refusal] if refusal else [])
        return seen

    async def _report_plan(
        self,
        replay: OutboxReplay,
        body: Body,
        plan: Plan,
        seen: ReplaySeen,
        memory: ReplayMemory,
        now: datetime,
    ) -> Reconciled:
        status = decide_replay_status(replay, plan.step, seen.refusals, now, plan.restraint)
        notices = [
            *decide_replay_notices(replay.status, status),
            *decide_kept_notices(replay, status),
            *self._restrainer.notices(replay),
        ]
        fresh, memory.announced = damped(notices, memory.announced, now)
        fresh = [*self._unknown_fields.notices(replay), *fresh]
        await self._report(replay, body, status, fresh, now)
        interval = self._settings.interval.total_seconds()
        again = seconds_to_next_reconcile(
            replay, seen, plan.step, plan.children, status, interval, now
        )
        return Reconciled(again, status.conditions)

    async def _finished(self, replay: OutboxReplay, body: Body, now: datetime) -> float | None:
        if is_paused(replay):
            return None  # removing the annotation triggers the next reconcile
        seen = self._gatherer.at_rest(replay)
        children = decide_replay_children(replay, seen, Leave(), self._settings)
        await self._writer.remove(replay, children.unwanted, seen)
        if why := why_it_stays(replay):
            status = with_reason_to_stay(replay.status, why)
            if status != replay.status:
                notice = Notice(EventReason.TTL_IGNORED, why, warning=True)
                await self._report(replay, body, status, [notice], now)
            return None
        left = seconds_to_live(replay, replay.status, now)
        if left is None or left > 0 or replay.metadata.deletion_timestamp is not None:
            return left
        await self._writer.expire(replay)
        return None

    async def _refuse(
        self, body: Body, error: ValidationError, memory: ReplayMemory, now: datetime
    ) -> Reconciled:
        """For a spec that the schema accepts but we cannot use."""
        resource = without_spec(body)
        before = ReplayStatus.model_validate(body.get("status") or {})
        if before.phase in FINISHED:
            return Reconciled(conditions=before.conditions)
        generation = resource.metadata.generation
        status = decide_invalid_replay(before, generation, why_invalid(error), now)
        notices = decide_replay_notices(before, status)
        fresh, memory.announced = damped(notices, memory.announced, now)
        await self._report(resource, body, status, fresh, now)
        return Reconciled(conditions=status.conditions)

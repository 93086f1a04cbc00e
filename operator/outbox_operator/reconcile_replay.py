"""
Reconcile a replay: gather, decide on the next step, take it, say how it stands.

Called by `reconcile` for one replay at a time. An attempt is made before the status tells of it: if
the operator ends in between, the next one finds it there, and makes no second.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from pydantic import ValidationError

from outbox_core.contract.settings import explain
from outbox_operator.cluster.client import Writer
from outbox_operator.cluster.gather_replay import ReplayGatherer
from outbox_operator.cluster.kinds import REPLAYS
from outbox_operator.decide.gitops import (
    TTL_IGNORED,
    decide_kept_notices,
    why_it_stays,
    with_reason_to_stay,
)
from outbox_operator.decide.notices import Notice, damped
from outbox_operator.decide.pausing import as_left_alone, is_paused
from outbox_operator.decide.replay import (
    FINISHED,
    Finished,
    Retry,
    Step,
    Suspend,
    decide_step,
)
from outbox_operator.decide.replay_children import (
    ReplayChildren,
    decide_replay_children,
    only_ended,
)
from outbox_operator.decide.replay_notices import decide_replay_notices
from outbox_operator.decide.replay_status import decide_invalid_replay, decide_replay_status
from outbox_operator.ignoring import Ignoring
from outbox_operator.metrics import Metrics
from outbox_operator.resources.objects import Resource
from outbox_operator.resources.replay import OutboxReplay, ReplayStatus
from outbox_operator.restraining import Restrainer, adopts
from outbox_operator.seen_replay import ReplaySeen
from outbox_operator.settings import OperatorSettings

Key = tuple[str, str, str]
"""Kind, namespace and name of a resource."""
Body = Mapping[str, Any]


@dataclass
class Remembered:
    """Of one replay, from look to look."""

    uid: str
    told: dict[str, datetime] = field(default_factory=dict)


class ReplayReconciler:
    def __init__(
        self,
        settings: OperatorSettings,
        gatherer: ReplayGatherer,
        writer: Writer,
        metrics: Metrics,
    ) -> None:
        self._settings = settings
        self._gatherer = gatherer
        self._writer = writer
        self._metrics = metrics
        self._restrainer = Restrainer(settings, writer)
        self._remembered: dict[Key, Remembered] = {}
        self._ignoring = Ignoring(writer)

    def forget(self, key: Key) -> None:
        if gone := self._remembered.pop(key, None):
            self._writer.forget(gone.uid)
            self._ignoring.forget(gone.uid)
            self._restrainer.forget(gone.uid)

    async def look(self, key: Key, body: Body) -> float | None:
        now = datetime.now(UTC)
        uid = body["metadata"]["uid"]
        remembered = self._remembered.get(key)
        if remembered is None or remembered.uid != uid:
            remembered = self._remembered[key] = Remembered(uid)
        try:
            replay = OutboxReplay.parse(body)
        except ValidationError as error:
            await self._refuse(key, body, error, remembered, now)
            return None
        if replay.status.phase in FINISHED:
            self._judged(key, replay.status)
            return await self._finished(replay, body, now)

        await self._ignoring.tell(replay, now)
        seen = await self._gatherer.replay(replay)
        restraint = self._restrainer.restraint(replay, seen, now)
        step = decide_step(as_left_alone(replay) if is_paused(replay) else replay, seen, now)
        children = decide_replay_children(replay, seen, step, self._settings)
        if restraint is not None and restraint.holds:
            children = only_ended(children, step, restraint)
        if children.attempt is not None or adopts(seen, children.wanted):
            # An attempt of a dead owner would replay until somebody removes it.
            await self._gatherer.confirm(replay)
        seen = await self._take(replay, children, seen)
        status = decide_replay_status(replay, step, seen.refusals, now, restraint)
        notices = [
            *decide_replay_notices(replay.status, status),
            *decide_kept_notices(replay, status),
            *self._restrainer.notices(replay),
        ]
        await self._tell(replay, notices, remembered, now)
        await self._writer.report(REPLAYS, replay, status.written(), body.get("status") or {})
        self._judged(key, status)
        return self._next_look(replay, seen, step, children, status, now)

    async def _take(
        self, replay: OutboxReplay, children: ReplayChildren, seen: ReplaySeen
    ) -> ReplaySeen:
        seen = await self._writer.apply(replay, children.wanted, seen)
        kept = await self._writer.remove(replay, children.unwanted, seen)
        seen = replace(seen, refusals=[*seen.refusals, *kept])
        if children.attempt is not None and not seen.refusals:
            refusal = await self._writer.create(replay, children.attempt)
            seen = replace(seen, refusals=[refusal] if refusal else [])
        return seen

    async def _tell(
        self, resource: Resource, notices: list[Notice], remembered: Remembered, now: datetime
    ) -> None:
        fresh, remembered.told = damped(notices, remembered.told, now)
        for notice in fresh:
            await self._writer.tell(
                resource, notice.reason, notice.message, warning=notice.warning, now=now
            )

    def _judged(self, key: Key, status: ReplayStatus) -> None:
        self._metrics.judged(key, {c.type: c.status for c in status.conditions})

    def _next_look(
        self,
        replay: OutboxReplay,
        seen: ReplaySeen,
        step: Step,
        children: ReplayChildren,
        status: ReplayStatus,
        now: datetime,
    ) -> float | None:
        look = self._settings.look.total_seconds()
        if status.phase in FINISHED:
            return 0.0 if why_it_stays(replay) else seconds_to_live(replay, status, now)
        if isinstance(step, Suspend):
            # As long as a driver is there, its last words may not have been heard.
            return look if children.unwanted or seen.drivers else None
        if isinstance(step, Retry) and replay.spec.suspend:
            return 0.0
        at = status.next_attempt_time
        if at is None or at <= now:
            return look
        return min(look, (at - now).total_seconds())

    async def _finished(self, replay: OutboxReplay, body: Body, now: datetime) -> float | None:
        if is_paused(replay):
            return None  # it is looked at when the annotation goes
        seen = self._gatherer.at_rest(replay)
        children = decide_replay_children(replay, seen, Finished(), self._settings)
        await self._writer.remove(replay, children.unwanted, seen)
        if why := why_it_stays(replay):
            status = with_reason_to_stay(replay.status, why)
            if status != replay.status:
                await self._writer.tell(replay, TTL_IGNORED, why, warning=True, now=now)
                await self._writer.report(REPLAYS, replay, status.written(), body["status"])
            return None
        left = seconds_to_live(replay, replay.status, now)
        if left is None or left > 0 or replay.metadata.deletion_timestamp is not None:
            return left
        await self._writer.expire(REPLAYS, replay)
        return None

    async def _refuse(
        self, key: Key, body: Body, error: ValidationError, remembered: Remembered, now: datetime
    ) -> None:
        """A spec that the schema let through and we cannot use."""
        why = "; ".join(line.strip() for line in explain(error).splitlines())
        resource = Resource.model_validate(
            {k: body[k] for k in ("apiVersion", "kind", "metadata")}, by_alias=True
        )
        before = ReplayStatus.model_validate(body.get("status") or {})
        if before.phase in FINISHED:
            self._judged(key, before)
            return
        status = decide_invalid_replay(before, resource.metadata.generation, why, now)
        await self._tell(resource, decide_replay_notices(before, status), remembered, now)
        await self._writer.report(REPLAYS, resource, status.written(), body.get("status") or {})
        self._judged(key, status)


def seconds_to_live(replay: OutboxReplay, status: ReplayStatus, now: datetime) -> float | None:
    """Until a finished one is deleted; None: it stays."""
    ttl, end = replay.spec.ttl_seconds_after_finished, status.completion_time
    if ttl is None or end is None:
        return None
    return max(0.0, (end + timedelta(seconds=ttl) - now).total_seconds())

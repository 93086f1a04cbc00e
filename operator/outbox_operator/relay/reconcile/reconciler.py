"""
Reconcile a relay: gather, decide, apply, report.

Called by `dispatch` for one relay at a time. Three things are not in that order, each for a reason:

- The finalizer is written before anything else: until it is set, the resource may be gone at any
  time.
- Before anything is created or adopted, the relay is read once more, to confirm that it still
  exists and has not changed. Only the decision shows that this is needed, and reading it at every
  reconcile would double the requests of five hundred idle relays.
- Leftovers, the finalizer's release and the status are judged by the children as they were just
  written. Judged by the children before that, a change that has only begun would look done, and
  what old pods still need would be removed.

A reconcile that found nothing to do is not repeated before something has changed, or time alone
would change its outcome (`rest`): five hundred idle relays would otherwise keep the
operator busy with decisions that were made before. Pods and Secrets are asked all the same.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from pydantic import ValidationError

from outbox_operator.kinds import RELAY
from outbox_operator.kube.writer import Writer
from outbox_operator.reconciling import KindReconciler, Reconciled
from outbox_operator.relay.decide.autoscaling import ScaleMemory
from outbox_operator.relay.decide.children import RelayChildren, decide_children, lacks
from outbox_operator.relay.decide.deletion import (
    how_to_delete_anyway,
    is_being_deleted,
    without_forbidden,
)
from outbox_operator.relay.decide.leftovers import decide_leftovers
from outbox_operator.relay.decide.next_reconcile import seconds_to_next_reconcile
from outbox_operator.relay.decide.reaping import should_suspend_reaper
from outbox_operator.relay.decide.replicas import Replicas, decide_replicas
from outbox_operator.relay.decide.staging import (
    Turns,
    comes_from_the_operator,
    what_waits,
    without_staged,
)
from outbox_operator.relay.events import Announced, decide_notices
from outbox_operator.relay.gather import Answers, RelayGatherer
from outbox_operator.relay.reconcile.finalizer import Finalizer
from outbox_operator.relay.reconcile.rest import Rest, figures_of, is_same, rests_until
from outbox_operator.relay.seen import RelaySeen
from outbox_operator.relay.spec.resource import OutboxRelay, RelayStatus
from outbox_operator.relay.spec.settings import secrets
from outbox_operator.relay.status import (
    decide_invalid,
    decide_status,
    while_blocked,
)
from outbox_operator.settings import OperatorSettings
from outbox_operator.shared.objects import Body, Key, others_part, why_invalid, without_spec
from outbox_operator.shared.reasons import Reason
from outbox_operator.shared.restraining import adopts


@dataclass
class RelayMemory:
    """Of one relay, from one reconcile to the next."""

    scale: ScaleMemory = field(default_factory=ScaleMemory)
    made_of: object = None
    children: RelayChildren | None = None
    """The last decision. It is used again as long as `made_of`, its input, stays the same."""
    announced: Announced | None = None
    refused: int = 0
    """How many times in a row the API server refused a child."""
    asked_since: datetime | None = None
    last_report: datetime | None = None
    """As in RelaySeen."""
    rest: Rest | None = None
    """If the last reconcile found nothing to do."""


@dataclass(frozen=True)
class Plan:
    """What one reconcile decided."""

    relay: OutboxRelay
    seen: RelaySeen
    """With the restraint, if there is one."""
    replicas: Replicas
    children: RelayChildren

    @property
    def blocks_writes(self) -> bool:
        """No child is written."""
        return self.seen.restraint is not None and self.seen.restraint.blocks_writes


class RelayReconciler(KindReconciler[RelayMemory]):
    def __init__(self, settings: OperatorSettings, gatherer: RelayGatherer, writer: Writer) -> None:
        super().__init__(RELAY, settings, writer, RelayMemory)
        self._gatherer = gatherer
        self._finalizer = Finalizer(writer)
        self._turns = Turns(settings.rollout_delay)

    async def reconcile(self, key: Key, body: Body) -> Reconciled:
        now = datetime.now(UTC)
        memory = self._memory(key, body["metadata"]["uid"])
        rest, memory.rest = memory.rest, None  # until this one, too, has found nothing to do
        answers: Answers | None = None
        if rest is not None and rest.is_of(body):
            names = [secret.name for secret in rest.secrets]
            answers = await self._ask(rest.relay, names, memory, now)
            if rest.lasts(answers, now):
                memory.rest = rest
                return rest.result
        try:
            relay = OutboxRelay.parse(body)
        except ValidationError as error:
            return await self._refuse(body, error, memory, now)
        relay = await self._finalizer.hold(relay)
        answers = answers or await self._ask(relay, secrets(relay), memory, now)
        seen = replace(
            self._gatherer.seen(relay, answers),
            asked_since=memory.asked_since,
            last_report=memory.last_report,
        )
        plan = self._decide(key, relay, seen, memory, now)
        seen = await self._apply(plan)
        if await self._finalizer.release(plan.relay, seen):
            return Reconciled()  # it is gone: there is no status left to write
        status, result = await self._report_plan(key, body, plan, seen, memory, now)
        memory.rest = self._rest(body, plan, seen, status, answers, memory, result, now)
        return result

    async def _ask(
        self, relay: OutboxRelay, names: Iterable[str], memory: RelayMemory, now: datetime
    ) -> Answers:
        answers = await self._gatherer.ask(relay, names)
        memory.asked_since = memory.asked_since or now
        if answers.reports:
            memory.last_report = now
        return answers

    def forget(self, key: Key) -> None:
        super().forget(key)
        self._turns.done(key[1:])

    def deleted(self, key: Key, last: Body) -> bool:
        return self._finalizer.deleted(key, last)

    async def after_deletion(self, key: Key) -> None:
        await self._finalizer.report_skipped(key)

    # Decide --------------------------------------------------------------------------------------

    def _decide(
        self, key: Key, relay: OutboxRelay, seen: RelaySeen, memory: RelayMemory, now: datetime
    ) -> Plan:
        restraint = self._restraint(relay, seen, now)
        if (
            restraint is not None
            and restraint.reason == Reason.FORBIDDEN
            and is_being_deleted(relay)
        ):
            relay, restraint = without_forbidden(relay), None
        seen = replace(seen, restraint=restraint)
        replicas = decide_replicas(relay, seen, memory.scale, now)
        memory.scale = replicas.memory
        children = self._children(relay, seen, memory, replicas.wanted, now)
        if restraint is None:
            children, seen = self._staged(key, relay, children, seen, now)
        return Plan(relay, seen, replicas, children)

    def _children(
        self,
        relay: OutboxRelay,
        seen: RelaySeen,
        memory: RelayMemory,
        replicas: int,
        now: datetime,
    ) -> RelayChildren:
        if is_being_deleted(relay):  # then the children depend on what still exists
            return decide_children(relay, seen, self._settings, replicas)
        suspend_reaper = should_suspend_reaper(relay, seen, replicas, now)
        made_of = (relay.metadata.generation, replicas, tuple(seen.secrets), suspend_reaper)
        if memory.children is None or memory.made_of != made_of:
            memory.made_of = made_of
            memory.children = decide_children(
                relay, seen, self._settings, replicas, suspend_reaper=suspend_reaper
            )
        return memory.children

    def _staged(
        self, key: Key, relay: OutboxRelay, children: RelayChildren, seen: RelaySeen, now: datetime
    ) -> tuple[RelayChildren, RelaySeen]:
        """The children that may be written now, if only the operator has changed."""
        if not comes_from_the_operator(relay, seen, children.wanted):
            self._turns.done(key[1:])
            return children, seen
        turn = self._turns.of(key[1:], now)
        if turn <= now:
            return children, seen
        waiting = replace(children, wanted=without_staged(seen, children.wanted))
        return waiting, replace(seen, restraint=what_waits(turn, self._turns.pause))

    # Apply ---------------------------------------------------------------------------------------

    async def _apply(self, plan: Plan) -> RelaySeen:
        """Returns what is seen afterwards: the children as they were just written."""
        relay, children = plan.relay, plan.children
        if plan.blocks_writes:
            return plan.seen
        if lacks(plan.seen, children) or adopts(plan.seen, children.wanted, children.unwanted):
            # The garbage collector would remove children of a deleted owner.
            await self._gatherer.confirm(relay)
        seen = await self._writer.apply(relay, children.wanted, plan.seen)
        leftovers = decide_leftovers(relay, seen, children, plan.replicas.wanted)
        kept = await self._writer.remove(relay, [*children.unwanted, *leftovers], seen)
        return replace(seen, refusals=[*seen.refusals, *kept])

    # Report --------------------------------------------------------------------------------------

    async def _report_plan(
        self,
        key: Key,
        body: Body,
        plan: Plan,
        seen: RelaySeen,
        memory: RelayMemory,
        now: datetime,
    ) -> tuple[RelayStatus, Reconciled]:
        relay, replicas = plan.relay, plan.replicas
        status = decide_status(relay, seen, replicas.wanted, replicas.scale, now)
        if plan.blocks_writes:
            assert plan.seen.restraint is not None
            status = while_blocked(relay, status, plan.seen.restraint)
        before = memory.announced or Announced.of(relay.status)
        notices, memory.announced = decide_notices(
            before, status, replicas.current, replicas.wanted, replicas.scale, now
        )
        notices = [
            *self._unknown_fields.notices(relay),
            *notices,
            *self._restrainer.notices(relay),
        ]
        await self._report(relay, body, status, notices, now)
        self._finalizer.reported(relay.metadata.uid, status)
        memory.refused = memory.refused + 1 if seen.refusals else 0
        again = seconds_to_next_reconcile(
            self._settings, seen, status, replicas.wanted, memory.refused
        )
        again = min(again, self._turns.left(key[1:], now))
        return status, Reconciled(again, status.conditions)

    def _rest(
        self,
        body: Body,
        plan: Plan,
        seen: RelaySeen,
        status: RelayStatus,
        answers: Answers,
        memory: RelayMemory,
        result: Reconciled,
        now: datetime,
    ) -> Rest | None:
        if seen.children != plan.seen.children or not is_same(status, plan.relay.status):
            return None  # the next reconcile judges by what was written
        assert memory.announced is not None
        until = rests_until(plan.relay, seen, status, plan.replicas, memory.announced, now)
        if until is None:
            return None
        return Rest(
            relay=plan.relay,
            others_part=others_part(body),
            status=status.written(),
            objects=answers.objects,
            secrets=answers.secrets,
            figures=figures_of(answers.reports),
            until=until,
            result=result,
        )

    async def _refuse(
        self, body: Body, error: ValidationError, memory: RelayMemory, now: datetime
    ) -> Reconciled:
        """For a spec that the schema accepts but we cannot use."""
        why = why_invalid(error)
        resource = without_spec(body)
        before = RelayStatus.model_validate(body.get("status") or {})
        await self._finalizer.hold_invalid(resource, body, before)
        if held := how_to_delete_anyway(resource):
            why = f"{why}; {held}"
        status = decide_invalid(before, resource.metadata.generation, why, now)
        announced = memory.announced or Announced.of(before)
        notices, memory.announced = decide_notices(announced, status, None, 0, None, now)
        await self._report(resource, body, status, notices, now)
        return Reconciled(conditions=status.conditions)

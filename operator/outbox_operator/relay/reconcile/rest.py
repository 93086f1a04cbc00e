"""
Rest: a reconcile that found nothing to do is not repeated while all that it depended on stays the
same: the resource, its children and pods, its Secrets, what the pods report, and the time.

Called by `reconciler`, which asks pods and Secrets all the same. Pure. Whatever a decision compares
with the clock has to be in `rests_until`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from outbox_core.contract.report import Report
from outbox_operator.reconciling import Reconciled
from outbox_operator.relay.decide.autoscaling import is_at_rest
from outbox_operator.relay.decide.checks import RECOVERED_AFTER, SET_UP_TIME
from outbox_operator.relay.decide.deletion import is_being_deleted
from outbox_operator.relay.decide.next_reconcile import is_calm
from outbox_operator.relay.decide.reaping import is_reaper_suspended
from outbox_operator.relay.decide.replicas import Replicas
from outbox_operator.relay.events import Announced, decide_notices
from outbox_operator.relay.gather import Answers
from outbox_operator.relay.seen import RelaySeen
from outbox_operator.relay.spec.resource import OutboxRelay, RelayStatus
from outbox_operator.relay.status import RENEWED_AFTER
from outbox_operator.shared.notices import QUIET_TIME
from outbox_operator.shared.objects import Body, others_part
from outbox_operator.shared.seen import Secret

LONGEST_REST = timedelta(minutes=10)
"""What a process remembers is a guess: after this time everything is decided again."""
UNUSED_FIGURES: Mapping[str, Any] = {"observed_at": True, "busy": True, "rates": {"seconds"}}
"""What differs in every report of an idle relay, and is only asked for while events wait."""


@dataclass(frozen=True)
class Rest:
    """A reconcile that found nothing to do, and all that it depended on."""

    relay: OutboxRelay
    others_part: Body
    status: Body
    """As it is in the resource now."""
    objects: tuple[int, ...]
    secrets: tuple[Secret, ...]
    figures: object
    until: datetime
    """When time alone may change the outcome."""
    result: Reconciled

    def is_of(self, body: Body) -> bool:
        return others_part(body) == self.others_part and body.get("status") == self.status

    def lasts(self, answers: Answers, now: datetime) -> bool:
        return (
            now < self.until
            and answers.objects == self.objects
            and answers.secrets == self.secrets
            and figures_of(answers.reports) == self.figures
        )


def figures_of(reports: Mapping[str, Report]) -> object:
    """What decisions use of the reports, by pod. Of some figures only the newest report counts."""
    newest = max(reports.values(), key=lambda r: r.observed_at, default=None)
    return (
        {pod: report.model_dump(exclude=UNUSED_FIGURES) for pod, report in reports.items()},
        newest and (newest.backlog, newest.top_errors),
    )


def is_same(status: RelayStatus, before: RelayStatus) -> bool:
    """Whether the next reconcile, with this status, judges as this one did."""
    return status == before.model_copy(update={"observed_at": status.observed_at})


def rests_until(
    relay: OutboxRelay,
    seen: RelaySeen,
    status: RelayStatus,
    replicas: Replicas,
    announced: Announced,
    now: datetime,
) -> datetime | None:
    """When time alone may change what a reconcile does; None: the next one has something to do."""
    if is_being_deleted(relay) or seen.restraint is not None or seen.refusals:
        return None
    if not is_calm(seen, status, replicas.wanted):
        return None
    if not status.ready_replicas and is_reaper_suspended(relay, seen):
        return None  # it is resumed soon
    scaling = relay.spec.autoscaling
    if scaling and replicas.scale and not is_at_rest(scaling, replicas.scale):
        return None
    wanted = replicas.wanted
    held_back, _ = decide_notices(announced, status, wanted, wanted, None, now + QUIET_TIME)
    if held_back:
        return None
    times = [
        now + LONGEST_REST,
        *(status.observed_at + RENEWED_AFTER for _ in seen.reports[:1] if status.observed_at),
        *(pod.held_since + SET_UP_TIME for pod in seen.pods if pod.held_since),
        *(s.back_since + RECOVERED_AFTER for p in seen.pods for s in p.stopped if s.back_since),
    ]
    return min(at for at in times if at > now)

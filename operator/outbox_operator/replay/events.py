"""Events of a replay: its phases, its attempts, and what blocks it."""

from outbox_operator.kinds import ReplayCondition
from outbox_operator.replay.spec.resource import ReplayStatus
from outbox_operator.shared.conditions import Condition
from outbox_operator.shared.notices import Notice
from outbox_operator.shared.reasons import EventReason, Reason

ON_ITS_WAY = frozenset(
    {
        Reason.PENDING,
        Reason.PLANNING,
        Reason.RUNNING,
        Reason.SUSPENDED,
        Reason.SUCCEEDED,
        Reason.CANCELLED,
        Reason.RECONCILE_PAUSED,  # announced when it starts, and when it ends
    }
)
"""Reasons that are no problem."""
ANNOUNCED_PHASES = ("Planning", "Running", "Suspended", "Succeeded", "Cancelled")
"""Phases that start with an Event. A failure is announced with its reason instead."""


def decide_replay_notices(before: ReplayStatus, after: ReplayStatus) -> list[Notice]:
    if before.phase in ("Succeeded", "Failed", "Cancelled"):
        return []
    message = after.message or ""
    if _is_invalid(after):
        return [] if _is_invalid(before) else [Notice(Reason.SPEC_INVALID, message, warning=True)]
    notices: list[Notice] = []
    if before.phase == "Suspended" != after.phase:
        notices.append(Notice(EventReason.RESUMED, "it continues where it stopped", always=True))
    if (after.attempts or 0) > (before.attempts or 0):
        text = f"attempt {after.attempts}: {after.engine} {after.application}"
        notices.append(Notice(EventReason.ATTEMPT_STARTED, text, always=True))
    if after.phase != before.phase and after.phase in ANNOUNCED_PHASES:
        notices.append(Notice(after.phase, message, always=True))
    reason = _complete(after)
    if after.phase == "Failed":
        notices.append(Notice(reason, message, warning=True, always=True))
    elif (after.failures or 0) > (before.failures or 0):
        notices.append(Notice(EventReason.ATTEMPT_FAILED, message, warning=True, always=True))
    elif reason not in ON_ITS_WAY and reason != _complete(before):
        notices.append(Notice(reason, message, warning=True))
    return notices


def _is_invalid(status: ReplayStatus) -> bool:
    return any(c.reason == Reason.SPEC_INVALID for c in status.conditions)


def _complete(status: ReplayStatus) -> str:
    """The reason of the condition Complete: why the replay is complete, or not yet."""
    found: Condition | None = next(
        (c for c in status.conditions if c.type == ReplayCondition.COMPLETE), None
    )
    return found.reason if found else ""

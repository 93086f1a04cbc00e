"""Notices of a replay: its phases, its attempts, and what is in its way."""

from outbox_operator.decide.notices import Notice
from outbox_operator.resources.conditions import Condition, Reason, ReplayCondition
from outbox_operator.resources.replay import ReplayStatus

ON_ITS_WAY = frozenset(
    {
        Reason.PENDING,
        Reason.PLANNING,
        Reason.RUNNING,
        Reason.SUSPENDED,
        Reason.SUCCEEDED,
        Reason.CANCELLED,
        Reason.RECONCILE_PAUSED,  # which is told when it begins, and when it ends
    }
)
"""Reasons that are no trouble."""
TOLD = ("Planning", "Running", "Suspended", "Succeeded", "Cancelled")
"""Phases that begin with an Event; the end of one that failed is told with its reason."""


def decide_replay_notices(before: ReplayStatus, after: ReplayStatus) -> list[Notice]:
    if before.phase in ("Succeeded", "Failed", "Cancelled"):
        return []
    message = after.message or ""
    if _is_invalid(after):
        return [] if _is_invalid(before) else [Notice(Reason.SPEC_INVALID, message, warning=True)]
    told: list[Notice] = []
    if before.phase == "Suspended" != after.phase:
        told.append(Notice("Resumed", "it goes on where it was", always=True))
    if (after.attempts or 0) > (before.attempts or 0):
        text = f"attempt {after.attempts}: {after.engine} {after.application}"
        told.append(Notice("AttemptStarted", text, always=True))
    if after.phase != before.phase and after.phase in TOLD:
        told.append(Notice(after.phase, message, always=True))
    reason = _complete(after)
    if after.phase == "Failed":
        told.append(Notice(reason, message, warning=True, always=True))
    elif (after.failures or 0) > (before.failures or 0):
        told.append(Notice("AttemptFailed", message, warning=True, always=True))
    elif reason not in ON_ITS_WAY and reason != _complete(before):
        told.append(Notice(reason, message, warning=True))
    return told


def _is_invalid(status: ReplayStatus) -> bool:
    return any(c.reason == Reason.SPEC_INVALID for c in status.conditions)


def _complete(status: ReplayStatus) -> str:
    """Why it is complete, or not yet."""
    found: Condition | None = next(
        (c for c in status.conditions if c.type == ReplayCondition.COMPLETE), None
    )
    return found.reason if found else ""

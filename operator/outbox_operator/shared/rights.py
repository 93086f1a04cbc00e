"""
A right that the operator lacks, as the resource's owner sees it: the owner may not see the
operator's log.

Used by the reconciler of every kind, when the API server refuses a request with 403.
"""

from collections.abc import Iterable
from datetime import datetime

from outbox_operator.kinds import RECONCILING, CustomKind
from outbox_operator.shared.conditions import Condition, Judged, as_conditions
from outbox_operator.shared.reasons import Reason


def without_a_right(
    kind: CustomKind, before: Iterable[Condition], generation: int, why: str, now: datetime
) -> tuple[Condition, ...]:
    """The conditions of a resource that the operator lacks a right to reconcile. Nothing is judged,
    so the other conditions stay."""
    message = (
        f"the operator lacks a right: {why}. Grant it, as the chart's roles do "
        "(rbac.create=true); the operator tries again, and what runs keeps running"
    )
    waits = "it waits for a person: see Stalled"
    judged: list[Judged] = [
        *((problem, "True", Reason.RIGHT_MISSING, message) for problem in kind.problems),
        (RECONCILING, "False", Reason.RIGHT_MISSING, waits),
    ]
    before = tuple(before)
    made = as_conditions(judged, before, generation, now)
    return (*made, *(c for c in before if c.type not in {m.type for m in made}))

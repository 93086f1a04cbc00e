"""
Conditions: what one consists of, and when it has changed. Which ones a kind has is in
`outbox_operator.kinds`, their reasons are in `reasons`.

Only the operator writes them. Each kind's `status` judges.
"""

import re
from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from outbox_core.contract.values import Time
from outbox_operator.shared.objects import Count, Status
from outbox_operator.shared.reasons import Reason
from outbox_operator.shared.texts import CONDITION_CHARACTERS, condition_text

REASON_PATTERN = re.compile(r"[A-Za-z]([A-Za-z0-9_,:]{0,1022}[A-Za-z0-9_])?")
"""What Kubernetes accepts. A pod may report anything, and a reason that Kubernetes refuses would
block every update of its resource's status."""


class Condition(Status):
    """A Kubernetes condition."""

    type: Annotated[str, Field(min_length=1, max_length=316)]
    """Which condition this is."""
    status: Literal["True", "False", "Unknown"]
    """Whether the condition holds."""
    reason: Annotated[
        str, Field(max_length=1024, pattern=r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$")
    ]
    """Why, in one word that does not change between versions."""
    message: Annotated[str, Field(max_length=CONDITION_CHARACTERS)] = ""
    """Why, in a sentence; with the cure if something is wrong."""
    observed_generation: Count | None = None
    """The metadata.generation that was judged."""
    last_transition_time: Time
    """When `status` last changed."""


Judged = tuple[str, str, str, str]
"""Type, status, reason and message of a condition."""


def as_conditions(
    judged: Iterable[Judged], before: Iterable[Condition], generation: int, now: datetime
) -> tuple[Condition, ...]:
    """The conditions of a resource at this generation; `before` are those it had until now."""
    made = [
        Condition.model_validate(
            {
                "type": kind,
                "status": status,
                "reason": reason if REASON_PATTERN.fullmatch(reason) else Reason.UNRECOGNISED,
                "message": condition_text(message),
                "observed_generation": generation,
                "last_transition_time": now.replace(microsecond=0),
            }
        )
        for kind, status, reason, message in judged
    ]
    return carried_over(before, made)


def carried_over(before: Iterable[Condition], after: Iterable[Condition]) -> tuple[Condition, ...]:
    """`after`, except that a condition whose status did not change keeps its time."""
    since: dict[tuple[str, str], datetime] = {
        (c.type, c.status): c.last_transition_time for c in before
    }
    return tuple(
        c.model_copy(
            update={"last_transition_time": since.get((c.type, c.status), c.last_transition_time)}
        )
        for c in after
    )

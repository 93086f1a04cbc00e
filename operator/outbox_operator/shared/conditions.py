"""
Conditions: which ones exist, and when one has changed. Their reasons are in `reasons`.

Only the operator writes them. Each kind's `status` judges; this module is only the vocabulary.
People and scripts rely on types and reasons (`kubectl wait --for=condition=Ready`): they are added,
never renamed.
"""

import re
from collections.abc import Iterable
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from outbox_core.contract.values import Time
from outbox_operator.shared.objects import Count, Status
from outbox_operator.shared.reasons import Reason
from outbox_operator.shared.texts import CONDITION_CHARACTERS, condition_text


class RelayCondition(StrEnum):
    """Of an OutboxRelay."""

    READY = "Ready"
    """At least one pod runs and reaches both database and broker. Also True while paused, if the
    pod that watches is ready."""
    PROGRESSING = "Progressing"
    """A change is being carried out: a rollout, a scaling, a migration."""
    DEGRADED = "Degraded"
    """Something needs a person; the message names the cure."""
    BACKLOG_HEALTHY = "BacklogHealthy"
    """Events leave about as fast as they arrive, and none is dead. Unknown while no pod
    reports."""
    PAUSED = "Paused"
    """Nothing is claimed, because the resource is paused."""
    RECONCILING = "Reconciling"
    """The last change has not reached every pod yet, and is being carried out. This condition and
    the next are for tools that read any resource this way, such as Flux and Helm (kstatus)."""
    STALLED = "Stalled"
    """The last change cannot be carried out until a person does something."""


class ReplayCondition(StrEnum):
    """Of an OutboxReplay."""

    COMPLETE = "Complete"
    """Done: everything that the request selects was replayed. A dry run completes too."""
    FAILED = "Failed"
    """Given up, for the reason in the message; what was requeued stays requeued."""
    SUSPENDED = "Suspended"
    """Stopped by `suspend`; continues where it stopped."""
    ACCEPTED = "Accepted"
    """The request is valid: the relay exists, and there is an engine to run it."""
    RECONCILING = "Reconciling"
    """It waits, or is at work. For the same tools as a relay's."""
    STALLED = "Stalled"
    """It failed, or cannot start until a person does something."""


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

"""
Conditions: which there are, and when one has changed. Their reasons are in `reasons`.

Written by the operator alone; each kind's `status` judges, here is only the vocabulary. People and
scripts rely on types and reasons (`kubectl wait --for=condition=Ready`): they are added, never
renamed.
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
    """Pods run as asked for, and reach both store and broker; True while paused, too, if the
    pod that watches is ready."""
    PROGRESSING = "Progressing"
    """A change is being carried out: a rollout, a scaling, a migration."""
    DEGRADED = "Degraded"
    """Something needs a person; the message names the cure."""
    BACKLOG_HEALTHY = "BacklogHealthy"
    """Events leave about as fast as they come, and none is dead. Unknown while nobody reports."""
    PAUSED = "Paused"
    """Nothing is claimed, because the resource says so."""
    RECONCILING = "Reconciling"
    """The last change has not reached every pod, and is on its way. This one and the next are for
    what reads any resource so, such as Flux and Helm (kstatus)."""
    STALLED = "Stalled"
    """The last change cannot be carried out until a person does something."""


class ReplayCondition(StrEnum):
    """Of an OutboxReplay."""

    COMPLETE = "Complete"
    """Done: what was to be replayed is. A dry run completes, too."""
    FAILED = "Failed"
    """Given up, for the reason in the message; what was requeued stays requeued."""
    SUSPENDED = "Suspended"
    """Stopped by `suspend`; goes on where it was."""
    ACCEPTED = "Accepted"
    """The request makes sense: the relay exists, and there is an engine to run it."""
    RECONCILING = "Reconciling"
    """It waits, or is at work. For what reads any resource so, as of a relay."""
    STALLED = "Stalled"
    """It failed, or cannot begin until a person does something."""


REASON_PATTERN = re.compile(r"[A-Za-z]([A-Za-z0-9_,:]{0,1022}[A-Za-z0-9_])?")
"""As Kubernetes wants it; a pod may report anything, and would stop all that is reported of it."""


class Condition(Status):
    """As Kubernetes writes conditions everywhere."""

    type: Annotated[str, Field(min_length=1, max_length=316)]
    """Which condition this is."""
    status: Literal["True", "False", "Unknown"]
    """Whether it holds."""
    reason: Annotated[
        str, Field(max_length=1024, pattern=r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$")
    ]
    """Why, in one word that does not change between versions."""
    message: Annotated[str, Field(max_length=CONDITION_CHARACTERS)] = ""
    """Why, in a sentence; with the cure where something is wrong."""
    observed_generation: Count | None = None
    """The metadata.generation that was judged."""
    last_transition_time: Time
    """When `status` changed last."""


Judged = tuple[str, str, str, str]
"""Type, status, reason and message of a condition."""


def as_conditions(
    judged: Iterable[Judged], before: Iterable[Condition], generation: int, now: datetime
) -> tuple[Condition, ...]:
    """Of the resource in that generation, which had those `before`."""
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
    """`after`, in which whatever did not change its status keeps the time since it holds."""
    since: dict[tuple[str, str], datetime] = {
        (c.type, c.status): c.last_transition_time for c in before
    }
    return tuple(
        c.model_copy(
            update={"last_transition_time": since.get((c.type, c.status), c.last_transition_time)}
        )
        for c in after
    )

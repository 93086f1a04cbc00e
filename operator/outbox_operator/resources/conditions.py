"""
Conditions: which there are, the stable reasons they give, and when one has changed.

Written by the operator alone; `decide` judges, here is only the vocabulary. People and scripts rely
on types and reasons (`kubectl wait --for=condition=Ready`): they are added, never renamed.
"""

import re
from collections.abc import Iterable
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from outbox_core.contract.values import Time
from outbox_operator.resources.objects import Count, Status
from outbox_operator.resources.texts import CONDITION_CHARACTERS, condition_text


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


class Reason(StrEnum):
    """Why a condition is as it is. One word for one cause, whichever condition gives it; where a
    relay itself gives one, in its report or its last words, that one is passed on."""

    # All is well, or on its way.
    AS_EXPECTED = "AsExpected"
    ROLLING_OUT = "RollingOut"
    SCALING = "Scaling"
    MIGRATING = "Migrating"
    PAUSED = "Paused"
    NOT_PAUSED = "NotPaused"
    SCALED_TO_ZERO = "ScaledToZero"
    DELETING = "Deleting"
    RECONCILE_PAUSED = "ReconcilePaused"
    ROLLOUT_WAITING = "RolloutWaiting"
    # The resource, or what it refers to.
    SPEC_INVALID = "SpecInvalid"
    SECRET_MISSING = "SecretMissing"  # noqa: S105 - the word for it, not one
    SECRET_MALFORMED = "SecretMalformed"  # noqa: S105
    NAME_TAKEN = "NameTaken"
    RIGHT_MISSING = "RightMissing"
    FORBIDDEN = "Forbidden"
    # The cluster.
    PODS_NOT_READY = "PodsNotReady"
    IMAGE_NOT_PULLED = "ImageNotPulled"
    PODS_NOT_CREATED = "PodsNotCreated"
    PODS_NOT_SCHEDULED = "PodsNotScheduled"
    PODS_NOT_SET_UP = "PodsNotSetUp"
    PODS_CRASHING = "PodsCrashing"
    UNRECOGNISED = "Unrecognised"
    ROLLOUT_STUCK = "RolloutStuck"
    RETIREMENT_FAILED = "RetirementFailed"
    RETIREMENT_SKIPPED = "RetirementSkipped"
    OTHER_OPERATOR = "OtherOperator"
    # Store and broker: what relays say themselves passes through, see `contract.reasons`.
    STORE_UNREACHABLE = "StoreUnreachable"
    MIGRATION_FAILED = "MigrationFailed"
    BROKER_UNREACHABLE = "BrokerUnreachable"
    # The backlog.
    LAG_TOO_HIGH = "LagTooHigh"
    DEAD_LETTERS = "DeadLetters"
    NO_REPORT = "NoReport"
    REPORT_STALE = "ReportStale"
    # Scaling.
    AT_MAXIMUM = "AtMaximum"
    STORE_IS_THE_LIMIT = "StoreIsTheLimit"
    # Replays.
    RELAY_MISSING = "RelayMissing"
    NO_ENGINE = "NoEngine"
    PENDING = "Pending"
    PLANNING = "Planning"
    RUNNING = "Running"
    SUSPENDED = "Suspended"
    NOT_SUSPENDED = "NotSuspended"
    SUCCEEDED = "Succeeded"
    CANCELLED = "Cancelled"
    DRIVER_MISSING = "DriverMissing"
    DRIVER_LOST = "DriverLost"
    TOO_MANY_EVENTS = "TooManyEvents"
    SELECTION_INVALID = "SelectionInvalid"
    BACKOFF_LIMIT_EXCEEDED = "BackoffLimitExceeded"


REASON = re.compile(r"[A-Za-z]([A-Za-z0-9_,:]{0,1022}[A-Za-z0-9_])?")
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
                "reason": reason if REASON.fullmatch(reason) else Reason.UNRECOGNISED,
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

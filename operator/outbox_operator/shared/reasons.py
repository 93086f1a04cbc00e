"""
Reasons: the one table of reasons in conditions and Events of our resources.

People and scripts rely on them: they are added, never renamed. A reason that a relay or a driver
reports itself, in its report or its termination message, is passed on: those are in
`contract.reasons`. docs/troubleshooting.md explains every reason of a condition; a test compares.
"""

from enum import StrEnum


class Reason(StrEnum):
    """Why a condition has its status. One reason for one cause, in every condition that gives it.
    A reason that a relay gives itself, in its report or its termination message, is passed on."""

    # All is well, or a change is being carried out.
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
    SECRET_MISSING = "SecretMissing"  # noqa: S105 - a reason, not a secret
    SECRET_MALFORMED = "SecretMalformed"  # noqa: S105
    NAME_TAKEN = "NameTaken"
    RIGHT_MISSING = "RightMissing"
    FORBIDDEN = "Forbidden"
    EGRESS_OPEN = "EgressOpen"
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
    # Store and broker: reasons that relays report are passed on, see `contract.reasons`.
    MIGRATION_FAILED = "MigrationFailed"
    # The backlog.
    LAG_TOO_HIGH = "LagTooHigh"
    DEAD_LETTERS = "DeadLetters"
    NO_REPORT = "NoReport"
    REPORT_STALE = "ReportStale"
    # Scaling.
    AT_MAXIMUM = "AtMaximum"
    MORE_PODS_DO_NOT_HELP = "MorePodsDoNotHelp"
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
    BACKOFF_LIMIT_EXCEEDED = "BackoffLimitExceeded"


class EventReason(StrEnum):
    """Reasons of Events without a condition; the others give the condition's reason."""

    # Of a relay.
    SCALED = "Scaled"
    RESUMED = "Resumed"
    RECOVERED = "Recovered"
    # Of a replay; a phase that begins gives its own name.
    ATTEMPT_STARTED = "AttemptStarted"
    ATTEMPT_FAILED = "AttemptFailed"
    TTL_IGNORED = "TtlIgnored"
    KEPT_IN_GIT = "KeptInGit"
    # Of any resource.
    UNKNOWN_FIELD = "UnknownField"
    ANNOTATION_UNKNOWN = "AnnotationUnknown"
    RECONCILE_RESUMED = "ReconcileResumed"

"""
Reasons: machine-readable names for why a relay does not work, or why a process ended.

Used on /status (`reasons`), and in the termination message that a failing process leaves for
Kubernetes. The operator reads both and turns them into conditions. The list only grows; readers
must accept unknown reasons, because a newer relay may use them.
"""

from enum import StrEnum

from pydantic import ValidationError

from outbox_core import errors
from outbox_core.contract.report import ReportPart
from outbox_core.errors import OutboxError
from outbox_core.model.attempt import without_secrets

LONGEST_MESSAGE_CHARS = 1000
"""Kubernetes keeps 4096 bytes of a termination message, and cuts off the rest."""


class ProcessReason(StrEnum):
    SETTINGS_INVALID = "SettingsInvalid"
    """The settings, or a secret that they refer to, are not usable: a person must change them."""
    STORE_UNREACHABLE = "StoreUnreachable"
    """The database does not answer, or not in time."""
    STORE_READ_ONLY = "StoreReadOnly"
    """The database accepts no writes: a standby, or a failover that has not ended."""
    STORE_BUSY = "StoreBusy"
    """A migration did not get a lock on a table: another transaction has been open too long."""
    WRONG_PASSWORD = "WrongPassword"  # noqa: S105 - it is not one
    """The database does not accept the password."""
    LOGIN_REFUSED = "LoginRefused"
    """The user may not log in to the database from here: no such role, or pg_hba.conf."""
    TLS_FAILED = "TlsFailed"
    """No TLS with the database: it offers none, its certificate is not trusted, or ours is missing
    or refused."""
    DATABASE_MISSING = "DatabaseMissing"
    """The server has no database of that name."""
    PERMISSION_DENIED = "PermissionDenied"
    """The database user lacks a right."""
    SCHEMA_MISSING = "SchemaMissing"
    """`outbox-relay migrate` has not run."""
    SCHEMA_OUTDATED = "SchemaOutdated"
    """`outbox-relay migrate` of an older version has run."""
    SCHEMA_TOO_NEW = "SchemaTooNew"
    """The schema is of a newer version than this program."""
    RELAY_UNKNOWN = "RelayUnknown"
    """No relay of that name has registered."""
    RELAY_RETIRED = "RelayRetired"
    """Somebody retired the relay while this process was running."""
    REFUSED = "Refused"
    """A rule of the outbox forbids it; nothing changed."""
    SELECTION_INVALID = "SelectionInvalid"
    """The replay's selection cannot be used."""
    TOO_MANY_EVENTS = "TooManyEvents"
    """More events match than the replay may take; nothing changed."""
    ENGINE_FAILED = "EngineFailed"
    """Spark failed; what it did stays done."""
    STORE_FAILED = "StoreFailed"
    """Anything else that the database refused; see the message."""
    BROKER_UNREACHABLE = "BrokerUnreachable"
    """The broker does not answer, or cannot accept anything."""
    BROKER_REFUSED = "BrokerRefused"
    """The broker refuses our user, password, certificate or mechanism."""
    STARTING = "Starting"
    """Not registered with the database yet."""
    DRAINING = "Draining"
    """Asked to stop; events in flight are being finished."""
    DEFECT = "Defect"
    """A bug in the program: the log has the stack trace."""


REASON_OF: dict[type, ProcessReason] = {
    errors.SettingsError: ProcessReason.SETTINGS_INVALID,
    errors.StoreError: ProcessReason.STORE_FAILED,
    errors.StoreUnavailable: ProcessReason.STORE_UNREACHABLE,
    errors.StoreReadOnly: ProcessReason.STORE_READ_ONLY,
    errors.StoreBusy: ProcessReason.STORE_BUSY,
    errors.WrongPassword: ProcessReason.WRONG_PASSWORD,
    errors.LoginRefused: ProcessReason.LOGIN_REFUSED,
    errors.TlsFailed: ProcessReason.TLS_FAILED,
    errors.DatabaseMissing: ProcessReason.DATABASE_MISSING,
    errors.PermissionDenied: ProcessReason.PERMISSION_DENIED,
    errors.SchemaMissing: ProcessReason.SCHEMA_MISSING,
    errors.SchemaOutdated: ProcessReason.SCHEMA_OUTDATED,
    errors.SchemaTooNew: ProcessReason.SCHEMA_TOO_NEW,
    errors.RelayUnknown: ProcessReason.RELAY_UNKNOWN,
    errors.RequestRefused: ProcessReason.REFUSED,
    errors.SelectionInvalid: ProcessReason.SELECTION_INVALID,
    errors.TooManyEvents: ProcessReason.TOO_MANY_EVENTS,
    errors.EngineFailed: ProcessReason.ENGINE_FAILED,
    errors.PublisherError: ProcessReason.BROKER_UNREACHABLE,
    errors.BrokerRefused: ProcessReason.BROKER_REFUSED,
    errors.Defect: ProcessReason.DEFECT,
}


def reason_of(error: Exception, otherwise: ProcessReason = ProcessReason.DEFECT) -> ProcessReason:
    """The reason of the error's class, or of the nearest base class that has one."""
    return next((REASON_OF[kind] for kind in type(error).__mro__ if kind in REASON_OF), otherwise)


class TerminationMessage(ReportPart):
    """What a failed process leaves for Kubernetes, as one line of JSON."""

    reason: str
    """A ProcessReason, or one that a newer version added."""
    message: str
    """One line: what is wrong, and what to do."""

    @classmethod
    def about(cls, error: OutboxError) -> "TerminationMessage":
        """Bounded, and without anything that looks like a credential."""
        text = "; ".join(line.strip() for line in without_secrets(str(error)).splitlines())
        cut = (
            text if len(text) <= LONGEST_MESSAGE_CHARS else text[: LONGEST_MESSAGE_CHARS - 1] + "…"
        )
        return cls(reason=reason_of(error), message=cut)

    @classmethod
    def read(cls, text: str) -> "TerminationMessage | None":
        """None if the container wrote something else, or was killed before it wrote anything."""
        try:
            return cls.model_validate_json(text)
        except ValidationError:
            return None

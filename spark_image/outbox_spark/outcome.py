"""
Outcomes: how the process ends, for the operator that decides about another attempt.

Called by `__main__`. Pure.
"""

from outbox_core.contract.replay import Exit
from outbox_core.errors import (
    DatabaseMissing,
    LoginRefused,
    OutboxError,
    Refused,
    RelayUnknown,
    RightMissing,
    SchemaMissing,
    SchemaTooNew,
    SettingsError,
    TlsFailed,
    WrongPassword,
)

FINAL = (
    SettingsError,
    WrongPassword,
    LoginRefused,
    TlsFailed,
    DatabaseMissing,
    RightMissing,
    SchemaMissing,
    SchemaTooNew,
    RelayUnknown,
    Refused,
)
"""Another attempt would meet them again: a person must change something first. A schema that is too
old is not among them: in an upgrade it is so for a moment, until somebody has migrated it."""
ROTATED = (WrongPassword, LoginRefused, TlsFailed)
"""Once we were let in, these tell of credentials or certificates that were changed meanwhile:
another attempt is given the new ones."""
TOLD_TO_STOP = 143
"""As a shell says it of a process that SIGTERM ended."""


def exit_of(error: OutboxError, begun: bool) -> Exit:
    """`begun`: the store had let us in."""
    if isinstance(error, FINAL) and not (begun and isinstance(error, ROTATED)):
        return Exit.FINAL
    return Exit.AGAIN

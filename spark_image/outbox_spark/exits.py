"""
Exit codes: which error another attempt may get over, for the operator that decides about one.

Called by `main`. Pure.
"""

from outbox_core.contract.replay import Exit
from outbox_core.errors import (
    NOT_LET_IN,
    DatabaseMissing,
    OutboxError,
    RelayUnknown,
    RequestRefused,
    RightMissing,
    SchemaMissing,
    SchemaTooNew,
    SettingsError,
)

FINAL = (
    *NOT_LET_IN,
    SettingsError,
    DatabaseMissing,
    RightMissing,
    SchemaMissing,
    SchemaTooNew,
    RelayUnknown,
    RequestRefused,
)
"""Another attempt would meet them again: a person must change something first. A schema that is too
old is not among them: in an upgrade it is so for a moment, until somebody has migrated it."""
TOLD_TO_STOP = 143
"""As a shell reports a process that SIGTERM ended."""


def exit_of(error: OutboxError, begun: bool) -> Exit:
    """
    `begun`: the store had let us in. If it does not any more, credentials or certificates were
    changed meanwhile, and another attempt is given the new ones.
    """
    if isinstance(error, FINAL) and not (begun and isinstance(error, NOT_LET_IN)):
        return Exit.FINAL
    return Exit.AGAIN

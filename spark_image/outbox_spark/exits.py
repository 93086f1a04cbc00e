"""
Exit codes: whether another attempt may succeed after an error. The operator acts on them.

Called by `main`. Pure.
"""

from outbox_core.contract.replay import Exit
from outbox_core.errors import (
    ACCESS_REFUSED,
    DatabaseMissing,
    OutboxError,
    PermissionDenied,
    RelayUnknown,
    RequestRefused,
    SchemaMissing,
    SchemaTooNew,
    SettingsError,
)

FINAL = (
    *ACCESS_REFUSED,
    SettingsError,
    DatabaseMissing,
    PermissionDenied,
    SchemaMissing,
    SchemaTooNew,
    RelayUnknown,
    RequestRefused,
)
"""Another attempt would fail in the same way: a person must change something first. A schema that
is too old is not among them: during an upgrade it may be too old until it is migrated."""
SIGTERM_EXIT_CODE = 143
"""What a shell reports for a process that SIGTERM ended."""


def exit_of(error: OutboxError, begun: bool) -> Exit:
    """
    `begun`: the store had accepted us. If it no longer does, credentials or certificates have been
    changed since, and another attempt gets the new ones.
    """
    if isinstance(error, FINAL) and not (begun and isinstance(error, ACCESS_REFUSED)):
        return Exit.FINAL
    return Exit.AGAIN

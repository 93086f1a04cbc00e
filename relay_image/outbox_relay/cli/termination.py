"""
The termination message of a container whose command failed.

Called by `cli.main`. Only the commands that are a container's main process write it: a command that
somebody runs in the same container with `kubectl exec` must not.
"""

from outbox_core.contract.reasons import TerminationMessage
from outbox_core.errors import OutboxError
from outbox_core.observe import termination

MAIN_COMMANDS = ("migrate", "run", "reap", "retire")
"""Commands that are a container's main process."""


def report(command: str, error: OutboxError) -> None:
    """Write the reason as one line of JSON."""
    if command in MAIN_COMMANDS:
        termination.write(TerminationMessage.about(error).model_dump_json(by_alias=True))

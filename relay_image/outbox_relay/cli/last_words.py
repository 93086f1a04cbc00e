"""
Last words: why a process failed, as its container's termination message.

Called by `cli.main` for the commands that are a container's main process: what somebody runs beside
them by `kubectl exec` must not speak for them.
"""

from outbox_core.contract.reasons import LastWords
from outbox_core.errors import OutboxError
from outbox_core.observe import termination

OF_A_CONTAINER = ("migrate", "run", "reap", "retire")


def leave(command: str, error: OutboxError) -> None:
    """As one line of JSON."""
    if command in OF_A_CONTAINER:
        termination.write(LastWords.about(error).model_dump_json(by_alias=True))

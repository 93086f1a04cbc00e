"""
Last words: why a process failed, where Kubernetes looks for it.

Kubernetes shows what a container wrote to /dev/termination-log in the pod's status, so the operator
can say "wrong password" without reading logs. Called by `cli.main` for the commands that are a
container's main process: what somebody runs beside them by `kubectl exec` must not speak for them.
"""

import os

from outbox_relay.contract.reasons import LastWords
from outbox_relay.errors import OutboxError

OF_A_CONTAINER = ("migrate", "run", "reap", "retire")
PATH = "/dev/termination-log"


def leave(command: str, error: OutboxError) -> None:
    """As one line of JSON, where there is such a file; elsewhere nobody waits for it."""
    if command not in OF_A_CONTAINER:
        return
    words = LastWords.about(error).model_dump_json(by_alias=True) + "\n"
    path = os.environ.get("OUTBOX_TERMINATION_LOG") or PATH
    try:
        file = os.open(path, os.O_WRONLY | os.O_TRUNC)  # never made: it is the kubelet's
    except OSError:
        return
    with os.fdopen(file, "w", encoding="utf-8") as log:
        log.write(words)

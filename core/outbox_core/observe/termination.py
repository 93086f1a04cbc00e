"""
The termination message: what a container leaves behind, where Kubernetes looks for it.

Kubernetes shows what a container wrote to /dev/termination-log in the pod's status, so the operator
can show why it failed without reading logs. Called by `cli.last_words`, and by a replay's driver.
"""

import os

DEFAULT_PATH = "/dev/termination-log"


def write(message: str) -> None:
    """As one line, where there is such a file; elsewhere nobody waits for it."""
    path = os.environ.get("OUTBOX_TERMINATION_LOG") or DEFAULT_PATH
    try:
        file = os.open(path, os.O_WRONLY | os.O_TRUNC)  # never made: it is the kubelet's
    except OSError:
        return
    with os.fdopen(file, "w", encoding="utf-8") as log:
        log.write(message + "\n")

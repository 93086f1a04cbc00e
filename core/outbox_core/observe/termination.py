"""
The termination message, written where Kubernetes reads it.

Kubernetes shows in the pod's status what a container wrote to /dev/termination-log, so the operator
can show why it failed without reading logs. Called by `cli.termination`, and by a replay's driver.
"""

import os

DEFAULT_PATH = "/dev/termination-log"


def write(message: str) -> None:
    """Write it as one line, if there is such a file; outside Kubernetes there is none."""
    path = os.environ.get("OUTBOX_TERMINATION_LOG") or DEFAULT_PATH
    try:
        file = os.open(path, os.O_WRONLY | os.O_TRUNC)  # never created: it is the kubelet's
    except OSError:
        return
    with os.fdopen(file, "w", encoding="utf-8") as log:
        log.write(message + "\n")

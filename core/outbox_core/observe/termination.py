"""
The termination message, written where Kubernetes reads it.

Kubernetes shows in the pod's status what a container wrote to /dev/termination-log, so the operator
can show why it failed without reading logs. Called by `cli.termination`, and by a replay's driver.
"""

import os

DEFAULT_PATH = "/dev/termination-log"


def write(message: str) -> None:
    """Write it as one line, if there is such a file; outside Kubernetes there is none. A process
    that is killed meanwhile leaves the old message or the new one: so the new one covers the old
    one before the rest is cut off."""
    path = os.environ.get("OUTBOX_TERMINATION_LOG") or DEFAULT_PATH
    line = f"{message}\n".encode()
    try:
        file = os.open(path, os.O_WRONLY)  # never created: it is the kubelet's
    except OSError:
        return
    try:
        os.pwrite(file, line.ljust(os.fstat(file).st_size), 0)
        os.ftruncate(file, len(line))
    finally:
        os.close(file)

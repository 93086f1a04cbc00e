"""
Stopping: by a signal, or by the file that records one that arrived before we listened.

Called by `main` and, before it starts work, by a pipeline. Until we run, our parent process
(`driver` in the image) handles SIGTERM for us: it records the signal in a file, and passes on the
path.
"""

import os
import signal
from types import FrameType

STOP_FILE_VARIABLE = "OUTBOX_STOP_FILE"
"""The environment variable with the file's path."""


class StopRequested(KeyboardInterrupt):
    """An interrupt, so that psycopg cancels the running statement."""


def listen() -> None:
    """From now on a signal raises StopRequested, anywhere; so does one that arrived earlier."""

    def stop(number: int, frame: FrameType | None) -> None:
        ignore_signals()
        raise StopRequested

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    raise_if_requested()


def ignore_signals() -> None:
    """The process is ending: another signal must not cut off the termination message."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)


def raise_if_requested() -> None:
    """The file may appear a moment after the signal that we missed: so this is checked again before
    work starts."""
    path = os.environ.get(STOP_FILE_VARIABLE)
    if path and os.path.exists(path):
        ignore_signals()
        raise StopRequested

"""
Stopping: by a signal, or by the file that records one that came before we listened.

Called by `main` and, before it lets work begin, by a pipeline. Our parent process (`driver` in the
image) ignores SIGTERM for us until we run, records it in a file, and passes on the path.
"""

import os
import signal
from types import FrameType

STOP_FILE_VARIABLE = "OUTBOX_TOLD_TO_STOP"
"""The environment variable with the file's path."""


class StopRequested(KeyboardInterrupt):
    """An interrupt, so that psycopg cancels the statement that is under way."""


def listen() -> None:
    """From now on StopRequested is raised, wherever we are; also if the signal came already."""

    def stop(number: int, frame: FrameType | None) -> None:
        listen_no_more()
        raise StopRequested

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    raise_if_requested()


def listen_no_more() -> None:
    """It is ending: the termination message is not cut off."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)


def raise_if_requested() -> None:
    """The file may come a moment after the signal that we missed: so this is asked before work."""
    path = os.environ.get(STOP_FILE_VARIABLE)
    if path and os.path.exists(path):
        listen_no_more()
        raise StopRequested

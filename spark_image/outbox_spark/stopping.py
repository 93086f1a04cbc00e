"""
Being told to stop: by a signal, or by the file that tells of one that came before we listened.

Called by `__main__` and, before it lets work begin, by `driver`. Whoever starts us (`driver` in the
image) ignores SIGTERM for us until we run, notes it, and says where.
"""

import os
import signal
from types import FrameType

FILE = "OUTBOX_TOLD_TO_STOP"
"""The environment's variable with the file's path."""


class Told(KeyboardInterrupt):
    """To stop. An interrupt, so that psycopg cancels the statement that is under way."""


def listen() -> None:
    """From now on it is raised, wherever we are; also if it was said already."""

    def stop(number: int, frame: FrameType | None) -> None:
        listen_no_more()
        raise Told

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    check()


def listen_no_more() -> None:
    """It is ending: last words are not cut off."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)


def check() -> None:
    """The note may come a moment after the signal that we did not hear: so also before work."""
    path = os.environ.get(FILE)
    if path and os.path.exists(path):
        listen_no_more()
        raise Told

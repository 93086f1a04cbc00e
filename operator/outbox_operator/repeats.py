"""
Repeats: a message that comes back with every attempt is logged only once in a while.

`program` asks it about each watch. Kopf logs every attempt itself, so `handlers` holds its records
back at our log handlers.
"""

import logging
import re
import time
from collections.abc import Callable

from outbox_core.observe.logs import extra_fields, message_of

REPEAT_SECONDS = 300.0


class Repeats:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._logged: dict[str, float] = {}

    def is_due(self, text: str) -> bool:
        """Whether to log it now. Numbers are ignored: each attempt has its own."""
        now = self._clock()
        self._logged = {old: at for old, at in self._logged.items() if now - at < REPEAT_SECONDS}
        same = re.sub(r"\d+", "", text)
        if same in self._logged:
            return False
        self._logged[same] = now
        return True

    @property
    def has_logged(self) -> bool:
        return bool(self._logged)

    def forget(self) -> None:
        """The trouble is over: if it returns, log it at once."""
        self._logged.clear()


class RepeatsOf(logging.Filter):
    """
    For a log handler: lets each line of one logger and its children through once in a while.

    It belongs on a handler, because a logger's own filter never sees the records of its children.
    An exception and extra fields are part of the line, so only a line that would read the same is
    held back.
    """

    def __init__(self, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(name)
        self._repeats = Repeats(clock)

    def filter(self, record: logging.LogRecord) -> bool:
        if not super().filter(record):  # another logger's
            return True
        return self._repeats.is_due(f"{message_of(record)} {extra_fields(record)}")

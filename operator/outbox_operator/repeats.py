"""
Repeats: a message that comes again and again, such as with each attempt, is logged once in a while.

Asked by `program`; on Kopf's logger it is a filter, because Kopf logs every attempt.
"""

import logging
import re
import time
from collections.abc import Callable

REPEAT_SECONDS = 300.0


class Repeats(logging.Filter):
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._logged: dict[str, float] = {}

    def is_due(self, text: str) -> bool:
        """Whether to log it now. Numbers do not count: those of attempts differ."""
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
        """What is over may be logged at once when it comes again."""
        self._logged.clear()

    def filter(self, record: logging.LogRecord) -> bool:
        return self.is_due(record.getMessage())

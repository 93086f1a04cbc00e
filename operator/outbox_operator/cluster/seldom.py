"""
Seldom: what is said again and again, such as by each of many attempts, is told once in a while.

Asked by `program`; on Kopf's logger it is a filter, because Kopf tells of every attempt.
"""

import logging
import re
import time
from collections.abc import Callable

SECONDS = 300.0


class Seldom(logging.Filter):
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._told: dict[str, float] = {}

    def is_due(self, text: str) -> bool:
        """Whether to say it now. Numbers do not count: those of attempts differ."""
        now = self._clock()
        self._told = {said: at for said, at in self._told.items() if now - at < SECONDS}
        same = re.sub(r"\d+", "", text)
        if same in self._told:
            return False
        self._told[same] = now
        return True

    @property
    def has_told(self) -> bool:
        return bool(self._told)

    def forget(self) -> None:
        """What is over may be told at once when it comes again."""
        self._told.clear()

    def filter(self, record: logging.LogRecord) -> bool:
        return self.is_due(record.getMessage())

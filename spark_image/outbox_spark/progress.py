"""
Progress: what the driver tells while it works, on /status and at its end.

The board is written by `driver` and read by the HTTP server's threads. How fast and how much longer
is reckoned here, from what the ledger says and when.
"""

import threading
from collections import deque
from datetime import UTC, datetime
from typing import Any

from outbox_core import __version__
from outbox_core.contract.replay import ReplayReport

WINDOW = 15.0
"""Seconds that "of late" means: shorter jumps with every chunk, longer hides a standstill."""


class Speed:
    """Events per second, of late."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def seen(self, at: float, done: int) -> float:
        """`done` events at that time, on any clock; 0 until something moves."""
        if len(self._seen) == 1 and self._seen[0][1] == done:
            self._seen.popleft()  # it has not begun: that is not slow
        self._seen.append((at, done))
        while len(self._seen) > 2 and self._seen[1][0] <= at - WINDOW:
            self._seen.popleft()
        first_at, first = self._seen[0]
        return (done - first) / (at - first_at) if at > first_at else 0.0


def seconds_left(left: int, speed: float) -> float | None:
    """None where nothing moves: nobody knows."""
    if left <= 0:
        return 0.0
    return left / speed if speed > 0 else None


class Board:
    """The report as it stands."""

    def __init__(self, replay_id: str) -> None:
        self._lock = threading.Lock()
        self._report = ReplayReport(
            version=__version__, id=replay_id, stage="Starting", observed_at=datetime.now(UTC)
        )

    def report(self) -> ReplayReport:
        with self._lock:
            return self._report

    def say(self, **changes: Any) -> ReplayReport:
        """What is not named stays as it was."""
        with self._lock:
            now = {"observed_at": datetime.now(UTC)}
            self._report = self._report.model_copy(update={**changes, **now})
            return self._report

"""
The report: what a pipeline shows while it works, on /status and at its end.

Written by a pipeline, read by the HTTP server's threads. How fast it is and how much longer it
takes is worked out here, from how much was done when. What a report contains is the contract's.
"""

import threading
from collections import deque
from collections.abc import Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Final, Generic, TypeVar

from outbox_core.contract.report import ReportPart

SPEED_WINDOW_SECONDS = 15.0
"""What "of late" means: shorter jumps with every chunk, longer hides a standstill."""

NOTHING_MOVES: Final[Mapping[str, Any]] = MappingProxyType({"rate": 0.0, "seconds_left": None})
"""What a report shows while no work is done, and nobody knows when it will be."""

R = TypeVar("R", bound=ReportPart)


class Speed:
    """Events per second, of late."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def seen(self, at: float, done: int) -> float:
        """`done` events at that time, on any clock; 0 until something moves."""
        if len(self._seen) == 1 and self._seen[0][1] == done:
            self._seen.popleft()  # it has not begun: that is not slow
        self._seen.append((at, done))
        while len(self._seen) > 2 and self._seen[1][0] <= at - SPEED_WINDOW_SECONDS:
            self._seen.popleft()
        first_at, first = self._seen[0]
        return (done - first) / (at - first_at) if at > first_at else 0.0


def seconds_left(left: int, speed: float) -> float | None:
    """None where nothing moves: nobody knows."""
    if left <= 0:
        return 0.0
    return left / speed if speed > 0 else None


class LiveReport(Generic[R]):
    """The report as it stands."""

    def __init__(self, first: R) -> None:
        self._lock = threading.Lock()
        self._report = first

    def current(self) -> R:
        with self._lock:
            return self._report

    def update(self, **changes: Any) -> R:
        """What is not named stays as it was."""
        with self._lock:
            now = {"observed_at": datetime.now(UTC)}
            self._report = self._report.model_copy(update={**changes, **now})
            return self._report

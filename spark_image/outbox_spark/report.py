"""
The report: what a pipeline shows while it works and at its end, on /status and in the termination
message.

Written by a pipeline, read by the HTTP server's threads. This module computes the speed and the
time left; the contract defines what a report contains.
"""

import threading
from collections import deque
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Final, Generic, TypeVar

from outbox_core.contract.report import ReportPart

SPEED_WINDOW_SECONDS = 15.0
"""A shorter window jumps with every chunk, a longer one hides a standstill."""

NO_PROGRESS: Final[Mapping[str, Any]] = MappingProxyType({"rate": 0.0, "seconds_left": None})
"""What a report shows while no work is done, and the time left is unknown."""

R = TypeVar("R", bound=ReportPart)


class Speed:
    """Events per second, recently."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def seen(self, at: float, done: int) -> float:
        """The speed, after `done` events at this time, on any clock; 0 until there is progress."""
        if len(self._seen) == 1 and self._seen[0][1] == done:
            self._seen.popleft()  # no progress yet: the time before the start does not count
        self._seen.append((at, done))
        while len(self._seen) > 2 and self._seen[1][0] <= at - SPEED_WINDOW_SECONDS:
            self._seen.popleft()
        first_at, first = self._seen[0]
        return (done - first) / (at - first_at) if at > first_at else 0.0


def seconds_left(left: int, speed: float) -> float | None:
    """None without progress: unknown."""
    if left <= 0:
        return 0.0
    return left / speed if speed > 0 else None


class LiveReport(Generic[R]):
    """The current report. Each one is handed to `keep`: a process that is killed reports nothing
    more, so what it has to report must be where others find it by then."""

    def __init__(self, first: R, keep: Callable[[R], None] = lambda report: None) -> None:
        self._lock = threading.Lock()
        self._report = first
        self._keep = keep

    def current(self) -> R:
        with self._lock:
            return self._report

    def update(self, **changes: Any) -> R:
        """Change these fields; the others stay as they are."""
        with self._lock:
            now = {"observed_at": datetime.now(UTC)}
            self._report = report = self._report.model_copy(update={**changes, **now})
        self._keep(report)
        return report

"""The report of this process: its own state, and the backlog as the database has it."""

import threading
from collections import deque
from datetime import UTC, datetime

from prometheus_client import Counter

from outbox_relay import __version__
from outbox_relay.contract.report import Backlog, Rates, Report, TopError
from outbox_relay.errors import StoreError
from outbox_relay.store import inspection
from outbox_relay.store.connection import Connection
from outbox_relay.worker.context import Context

FRESH = 2.0
"""Asked again within this time, the same answer: probes must cost the store nothing."""
WINDOW = 60.0


class Reporter:
    def __init__(self, context: Context) -> None:
        self._context = context
        self._lock = threading.Lock()
        self._conn: Connection | None = None
        self._last: Report | None = None
        self._last_at = float("-inf")
        self._seen: deque[tuple[float, float, float, float]] = deque()

    def report(self) -> Report:
        with self._lock:
            now = self._context.clock()
            if self._last is None or now - self._last_at >= FRESH:
                self._last, self._last_at = self._make(now), now
            return self._last

    def _make(self, now: float) -> Report:
        context = self._context
        backlog: Backlog | None = None
        errors: list[TopError] = []
        at = datetime.now(UTC)
        try:
            if self._conn is None:
                self._conn = context.open_connection("status")
            found = inspection.backlog(self._conn, context.relay, context.floor)
            at = found.at
            backlog = Backlog(
                pending=found.pending,
                claimed=found.claimed,
                dead=found.dead,
                oldest_pending_seconds=found.oldest_pending_seconds,
                approximate=found.approximate,
            )
            errors = [
                TopError(error_class=e.error_class, code=e.code, text=e.text, count=e.count)
                for e in found.top_errors
            ]
        except StoreError as error:
            context.health.trouble("status", str(error))
            self.close()
        else:
            context.health.well("status")
        troubles = dict(context.health.troubles)
        return Report(
            version=__version__,
            relay=context.settings.name,
            claimed_by=context.settings.owner,
            ordering=context.settings.ordering,
            ready=not troubles,
            troubles=troubles,
            breaker=context.breaker.state.value,
            lanes=len(context.crew.lanes) if context.ordered else 0,
            backlog=backlog,
            rates=self._rates(now),
            top_errors=errors,
            observed_at=at,
        )

    def _rates(self, now: float) -> Rates:
        metrics = self._context.metrics
        failed = sum(
            s.value
            for m in metrics.failed.collect()
            for s in m.samples
            if s.name.endswith("_total")
        )
        point = (now, counted(metrics.published), failed, counted(metrics.dead))
        self._seen.append(point)
        while self._seen[0][0] < now - WINDOW and len(self._seen) > 2:
            self._seen.popleft()
        first = self._seen[0]
        span = max(FRESH, now - first[0])
        return Rates(
            published=round((point[1] - first[1]) / span, 2),
            failed=round((point[2] - first[2]) / span, 2),
            dead=round((point[3] - first[3]) / span, 2),
        )

    def close(self) -> None:
        if self._conn is not None:
            self._conn.close()
            self._conn = None


def counted(counter: Counter) -> float:
    return next(s.value for m in counter.collect() for s in m.samples if s.name.endswith("_total"))

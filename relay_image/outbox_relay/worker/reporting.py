"""The report of this process: its own state, and the backlog from the database."""

import threading
from collections import deque
from datetime import UTC, datetime
from typing import NamedTuple

from prometheus_client import Counter

from outbox_core import __version__
from outbox_core.contract.report import (
    Backlog,
    Busy,
    ParkedDestination,
    Rates,
    Report,
    TopError,
)
from outbox_core.errors import StoreError
from outbox_core.observe.metrics import RelayMetrics
from outbox_core.store.connection import Connection
from outbox_core.store.inspect import backlog as counting
from outbox_relay.worker.context import Context

FRESH_SECONDS = 2.0
"""What a report has from the store is reused for this long: frequent probes must cost the store
nothing."""
RATE_WINDOW_SECONDS = 60.0
MOST_PARKED_SHOWN = 20
COUNT_PUBLISHED_EVERY_SECONDS = 60.0
"""Less often than the backlog, because it samples the whole table."""


class Point(NamedTuple):
    """The counters at one moment."""

    at: float
    published: float
    failed: float
    dead: float
    store: float
    """Seconds, of all workers together."""
    publish: float


class Figures(NamedTuple):
    """What a report has from the store."""

    backlog: Backlog | None
    top_errors: list[TopError]
    at: datetime


class Reporter:
    def __init__(self, context: Context) -> None:
        self._context = context
        self._lock = threading.Lock()
        self._conn: Connection | None = None
        self._last: Report | None = None
        self._last_at = float("-inf")
        self._published: int | None = None
        self._published_at = float("-inf")
        self._seen = deque([Point(context.clock(), 0, 0, 0, 0, 0)])

    def report(self) -> Report:
        with self._lock:
            now = self._context.clock()
            if self._last is None or now - self._last_at >= FRESH_SECONDS:
                self._last, self._last_at = self._make(now), now
            troubles, reasons = self._context.health.snapshot()
            # Health is never reused: /status must not contradict /readyz.
            update = {"ready": not troubles, "troubles": troubles, "reasons": reasons}
            return self._last.model_copy(update=update)

    def _figures(self, now: float) -> Figures:
        """All or nothing: a report that shows a backlog, but lost the store while reading the rest,
        would look like one without errors."""
        context = self._context
        try:
            figures = self._read(now)
        except StoreError as error:
            context.health.trouble("status", error)
            self.close()
            return Figures(None, [], datetime.now(UTC))
        context.health.clear("status")
        return figures

    def _read(self, now: float) -> Figures:
        context = self._context
        if self._conn is None:
            self._conn = context.open_connection("status")
        found = counting.backlog(self._conn, context.relay, context.floor)
        if now - self._published_at >= COUNT_PUBLISHED_EVERY_SECONDS:
            self._published, _ = counting.published(self._conn, context.relay)
            self._published_at = now
        return Figures(
            Backlog(
                pending=found.pending,
                claimed=found.claimed,
                dead=found.dead,
                oldest_pending_seconds=found.oldest_pending_seconds,
                approximate=found.approximate,
            ),
            [
                TopError(error_class=e.error_class, code=e.code, text=e.text, count=e.count)
                for e in found.top_errors
            ],
            found.at,
        )

    def _make(self, now: float) -> Report:
        context = self._context
        figures = self._figures(now)
        troubles, reasons = context.health.snapshot()
        first, last, span = self._span(now)
        parked = context.publisher.parked()
        return Report(
            version=__version__,
            relay=context.settings.name,
            claimed_by=context.settings.owner,
            ordering=context.settings.ordering,
            ready=not troubles,
            troubles=troubles,
            reasons={**reasons},
            paused=context.settings.paused,
            breaker=context.breaker.state.value,
            parked_destinations=len(parked),
            parked=[
                ParkedDestination(name=p.name, seconds=round(p.seconds, 1), why=p.why)
                for p in parked[:MOST_PARKED_SHOWN]
            ],
            lanes=len(context.crew.lanes) if context.ordered else 0,
            backlog=figures.backlog,
            published=self._published,
            rates=Rates(
                published=round((last.published - first.published) / span, 2),
                failed=round((last.failed - first.failed) / span, 2),
                dead=round((last.dead - first.dead) / span, 2),
                seconds=round(span, 1),
            ),
            busy=self._busy(first, last, span),
            top_errors=figures.top_errors,
            observed_at=figures.at,
        )

    def _span(self, now: float) -> tuple[Point, Point, float]:
        """The first and the last point of the window, and the seconds between them."""
        metrics = self._context.metrics
        stages = stage_seconds(metrics)
        point = Point(
            now,
            counted(metrics.published),
            sum(
                s.value
                for m in metrics.failed.collect()
                for s in m.samples
                if s.name.endswith("_total")
            ),
            counted(metrics.dead),
            stages.get("store", 0.0),
            stages.get("publish", 0.0),
        )
        self._seen.append(point)
        while self._seen[0].at < now - RATE_WINDOW_SECONDS and len(self._seen) > 2:
            self._seen.popleft()
        first = self._seen[0]
        return first, point, max(FRESH_SECONDS, now - first.at)

    def _busy(self, first: Point, last: Point, span: float) -> Busy | None:
        settings = self._context.settings
        if settings.paused:
            return None

        def share(seconds: float) -> float:
            # A stage counts when it ends: a long one may have begun before the first point.
            return round(min(1.0, seconds / span / settings.workers), 3)

        return Busy(
            store=share(last.store - first.store),
            publish=share(last.publish - first.publish),
            workers=settings.workers,
        )

    def close(self) -> None:
        if self._conn is not None:
            self._conn.close()
            self._conn = None


def counted(counter: Counter) -> float:
    return next(s.value for m in counter.collect() for s in m.samples if s.name.endswith("_total"))


def stage_seconds(metrics: RelayMetrics) -> dict[str, float]:
    """How long each stage has taken so far, for all workers together."""
    return {
        s.labels["stage"]: s.value
        for m in metrics.stage.collect()
        for s in m.samples
        if s.name.endswith("_sum")
    }

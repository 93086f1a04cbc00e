"""
Metrics of a relay process. Label sets are bounded: classes and stages, never types, keys or ids.

Observed per batch, not per event: at fifty thousand events per second, one observation each would
cost more than publishing them.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from threading import Lock

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from outbox_core.contract.report import Report

SECONDS_BUCKETS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1, 2.5, 5, 10, 30, 60, 300),
)
BATCH_SIZE_BUCKETS = (1, 2, 5, 10, 25, 50, 100, 250, 500, 1000, 2000, 5000, 10000)


class Latencies(Collector):
    """A histogram that takes a whole batch at once."""

    def __init__(self, name: str, text: str, registry: CollectorRegistry) -> None:
        self._name, self._text = name, text
        self._lock = Lock()
        self._counts = [0] * (len(SECONDS_BUCKETS) + 1)
        self._sum = 0.0
        registry.register(self)

    def observe(self, seconds: Sequence[float]) -> None:
        ordered = sorted(seconds)
        edges = [bisect_left(ordered, edge + 1e-9) for edge in SECONDS_BUCKETS]
        with self._lock:
            below = 0
            for i, edge in enumerate([*edges, len(ordered)]):
                self._counts[i] += edge - below
                below = edge
            self._sum += sum(ordered)

    def collect(self) -> Iterator[Metric]:
        with self._lock:
            counts, total = list(self._counts), self._sum
        buckets, running = [], 0
        for edge, count in zip([*map(str, SECONDS_BUCKETS), "+Inf"], counts, strict=True):
            running += count
            buckets.append((edge, float(running)))
        yield HistogramMetricFamily(self._name, self._text, buckets=buckets, sum_value=total)


class RelayMetrics:
    def __init__(self) -> None:
        self.registry = r = CollectorRegistry()
        self.published = Counter(
            "outbox_published", "Events that the broker acknowledged", registry=r
        )
        self.failed = Counter(
            "outbox_failed", "Attempts that failed, by class of error", ["error_class"], registry=r
        )
        self.retried = Counter("outbox_retried", "Events put back for another attempt", registry=r)
        self.returned = Counter(
            "outbox_returned", "Events given back without an attempt", registry=r
        )
        self.dead = Counter("outbox_dead", "Events declared dead", registry=r)
        self.reaped = Counter("outbox_reaped", "Claims taken back after their lease", registry=r)
        self.lost = Counter(
            "outbox_lost_claims", "Claims taken over before they were finalised", registry=r
        )
        self.renewed = Counter(
            "outbox_renewed_claims", "Claims renewed during a publish", registry=r
        )
        self.batch = Histogram(
            "outbox_batch_size", "Events per claim", buckets=BATCH_SIZE_BUCKETS, registry=r
        )
        self.stage = Histogram(
            "outbox_stage_seconds",
            "Time of a stage",
            ["stage"],
            buckets=SECONDS_BUCKETS,
            registry=r,
        )
        self.latency = Latencies(
            "outbox_commit_to_ack_seconds", "From the event's insert to the acknowledgement", r
        )
        self.finished = Gauge(
            "outbox_deliveries_published", "Deliveries that are PUBLISHED", registry=r
        )
        self.backlog = Gauge("outbox_backlog", "Deliveries by state", ["state"], registry=r)
        self.oldest = Gauge(
            "outbox_oldest_pending_seconds", "Age of the oldest due event", registry=r
        )
        self.breaker = Gauge(
            "outbox_breaker_open", "1 while the circuit breaker is not closed", registry=r
        )
        self.parked = Gauge(
            "outbox_parked_destinations",
            "Destinations that accept nothing now, while others do",
            registry=r,
        )
        self.ready = Gauge("outbox_ready", "1 while there are no troubles", registry=r)
        self.paused = Gauge("outbox_relay_paused", "1 while the relay is paused", registry=r)
        self.lanes = Gauge(
            "outbox_lanes_held", "Lanes that this process may claim from", registry=r
        )

    def show(self, report: Report) -> None:
        """Set the metrics that the report contains, so that they are not counted twice."""
        if report.backlog is not None:
            for state in ("pending", "claimed", "dead"):
                self.backlog.labels(state).set(getattr(report.backlog, state))
            self.oldest.set(report.backlog.oldest_pending_seconds)
        if report.published is not None:
            self.finished.set(report.published)
        self.parked.set(report.parked_destinations)
        self.ready.set(report.ready)

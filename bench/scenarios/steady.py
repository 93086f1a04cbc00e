"""
Steady: single-row transactions at a steady rate; how long from commit to consumer?

Latency is the time from when the commit returned to the producer until the consumer has the
record, on one clock; where nobody consumes, until the server had it, by its own stamp. Measured
warm: the relay has published a first load before, and the first seconds at the rate itself do not
count.
"""

import time
from array import array
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context

from bench.lab import Lab, Site
from bench.meter import Cost, Meter, cost
from bench.scenarios.drain import FIRST_NUMBER, wait_for
from bench.systems.base import System
from bench.workload import produce

WARM_UP_SECONDS = 5.0
TAIL_SECONDS = 20.0
"""How long the last events may take; what has not arrived by then is missing."""


@dataclass(frozen=True)
class Steady:
    rate: float
    """Commits per second, as achieved."""
    p50: float
    p90: float
    p99: float
    worst: float
    """Milliseconds."""
    missing: int
    cost: Cost
    """PostgreSQL's includes the inserts, the server's what it does for the consumer."""
    memory: float

    def row(self) -> dict[str, float]:
        return {
            "commits/s": round(self.rate),
            "p50 ms": round(self.p50, 1),
            "p90": round(self.p90, 1),
            "p99": round(self.p99, 1),
            "worst": round(self.worst),
            "missing": self.missing,
            "relay": round(self.cost.relay),
            "PG": round(self.cost.postgres),
            "server": round(self.cost.server),
            "CPU": round(self.cost.cpu),
            "WAL": round(self.cost.wal),
            "MB": round(self.memory),
        }


Beside = Callable[[Site], Callable[[], None]]


def nothing(site: Site) -> Callable[[], None]:
    return lambda: None


def steady(
    lab: Lab,
    system: System,
    rate: float,
    seconds: float,
    keys: int,
    *,
    kind: str = "kafka",
    template: str | None = None,
    beside: Beside = nothing,
) -> Steady:
    """`beside` starts something that runs meanwhile; it returns a function that ends it."""
    with lab.site(system.flavour, template, kind) as site:
        system.set_up(site)
        meter = Meter(site)
        try:
            system.start()
            warm_up = site.destination.warm_up_events
            system.load(warm_up, keys)
            wait_for(system, site, warm_up)
            return _steady(system, site, meter, rate, seconds, keys, beside)
        finally:
            system.stop()
            meter.close()


def _steady(
    system: System,
    site: Site,
    meter: Meter,
    rate: float,
    seconds: float,
    keys: int,
    beside: Beside,
) -> Steady:
    end = beside(site)
    cut = int(WARM_UP_SECONDS * rate)
    events = cut + int(seconds * rate)
    begin = time.monotonic_ns() + 3_000_000_000  # time for two interpreters to start
    until = begin + int((events / rate + TAIL_SECONDS) * 1e9)
    receive = site.destination.receiver(site.name)
    shape = site.destination.shape
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        receiving = pool.submit(receive, FIRST_NUMBER, events, until)
        insert = system.insert_sql
        sending = pool.submit(
            produce, site.dsn, insert, shape, FIRST_NUMBER, events, keys, rate, begin
        )
        _sleep_until(begin + int(WARM_UP_SECONDS * 1e9))
        before = meter.read(system.pids)
        _sleep_until(begin + int(events / rate * 1e9))
        after = meter.read(system.pids)
        committed, received = sending.result(), receiving.result()
    end()
    latencies = _latencies(committed[cut:], received[cut:])
    return Steady(
        rate=(events - cut - 1) / (max(committed[cut:]) - min(committed[cut:])) * 1e9,
        p50=quantile(latencies, 0.50),
        p90=quantile(latencies, 0.90),
        p99=quantile(latencies, 0.99),
        worst=latencies[-1],
        missing=events - cut - len(latencies),
        cost=cost(before, after, events - cut),
        memory=system.peak_memory(),
    )


def _latencies(committed: "array[int]", received: "array[int]") -> list[float]:
    """
    Sorted, in milliseconds.

    An event can reach the consumer before its producer knows that the commit is done: that is a
    negative latency, and counts unchanged.
    """
    pairs = zip(committed, received, strict=True)
    found = sorted((r - c) / 1e6 for c, r in pairs if r)
    if not found:
        raise RuntimeError("no event arrived")
    return found


def quantile(ordered: Sequence[float], q: float) -> float:
    return ordered[min(int(len(ordered) * q), len(ordered) - 1)]


def _sleep_until(at_ns: int) -> None:
    time.sleep(max(at_ns - time.monotonic_ns(), 0) / 1e9)

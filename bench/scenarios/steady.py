"""
Steady: small transactions at a steady rate; how long from commit to consumer, at what cost?

Latency is the time from when the commit returned to the producer until the consumer has the
record, on one clock; where nobody consumes, until the server had it, by its own stamp. Measured
warm: the relay has published a first load before, and the first seconds at the rate itself do not
count. `rates` does this for one rate after another, in one database and with one start.
"""

import time
from array import array
from collections.abc import Callable, Iterator, Sequence
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
TRANSACTIONS_PER_SECOND = 500.0
"""At higher rates a transaction has several events: two cores could not commit each of them."""
LATE_MS = 1000.0
LATE_SHARE = 0.01
SLOW_SHARE = 0.95
"""A system keeps up if no more than this share is later, or missing, and commits are that quick."""
NUMBERS_PER_PHASE = 10_000_000
QUANTILES = (0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.995, 0.999, 1.0)
"""Of the latency, for a plot of its distribution."""


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
    kept_up: bool = True
    distribution: tuple[float, ...] = ()
    """Milliseconds at `QUANTILES`."""

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

    def details(self) -> dict[str, list[float]]:
        """What a table has no place for."""
        return {
            "quantiles": list(QUANTILES),
            "latency ms": [round(value, 2) for value in self.distribution],
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


def rates(
    lab: Lab, system: System, wanted: Sequence[float], seconds: float, keys: int
) -> Iterator[Steady]:
    """The lowest rate first; ends after the first one at which the system does not keep up."""
    with lab.site(system.flavour) as site:
        system.set_up(site)
        meter = Meter(site)
        try:
            system.start()
            warm_up = site.destination.warm_up_events
            system.load(warm_up, keys)
            wait_for(system, site, warm_up)
            for phase, rate in enumerate(wanted):
                first = FIRST_NUMBER + phase * NUMBERS_PER_PHASE
                done = _steady(system, site, meter, rate, seconds, keys, nothing, first)
                yield done
                if not done.kept_up:
                    break
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
    first: int = FIRST_NUMBER,
) -> Steady:
    end = beside(site)
    cut = int(WARM_UP_SECONDS * rate)
    events = cut + int(seconds * rate)
    together = max(round(rate / TRANSACTIONS_PER_SECOND), 1)
    insert = system.insert_sql if together == 1 else system.batch_sql()
    begin = time.monotonic_ns() + 3_000_000_000  # time for two interpreters to start
    until = begin + int((events / rate + TAIL_SECONDS) * 1e9)
    receive = site.destination.receiver(site.name)
    shape = site.destination.shape
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        receiving = pool.submit(receive, first, events, until)
        sending = pool.submit(
            produce, site.dsn, insert, shape, first, events, keys, rate, begin, together
        )
        _sleep_until(begin + int(WARM_UP_SECONDS * 1e9))
        before = meter.read(system.pids)
        _sleep_until(begin + int(events / rate * 1e9))
        after = meter.read(system.pids)
        committed, received = sending.result(), receiving.result()
    end()
    latencies = _latencies(committed[cut:], received[cut:])
    achieved = (events - cut - 1) / max(max(committed[cut:]) - min(committed[cut:]), 1) * 1e9
    return Steady(
        rate=achieved,
        p50=quantile(latencies, 0.50),
        p90=quantile(latencies, 0.90),
        p99=quantile(latencies, 0.99),
        worst=latencies[-1],
        missing=events - cut - len(latencies),
        cost=cost(before, after, events - cut),
        memory=system.peak_memory(),
        kept_up=kept_up(latencies, events - cut, achieved, rate),
        distribution=tuple(quantile(latencies, q) for q in QUANTILES),
    )


def kept_up(latencies: Sequence[float], events: int, achieved: float, rate: float) -> bool:
    """Whether events left as quickly as they came. If not, a cost per event means nothing."""
    in_time = sum(latency <= LATE_MS for latency in latencies)
    return in_time >= events * (1 - LATE_SHARE) and achieved >= rate * SLOW_SHARE


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

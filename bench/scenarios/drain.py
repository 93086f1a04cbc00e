"""
Drain: the backlog exists before the relay starts; how long until all of it is in Kafka?

"with start" counts from the start of the process, "warm" from the first event in Kafka. A drain
counts only if every event is in the topic; duplicates and events out of order are reported.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from bench.lab import Lab, Site
from bench.meter import Cost, Meter, cost
from bench.systems.base import System

CHECK_EVERY_SECONDS = 0.1
"""Between two checks of the topic: at 0.05 they cost the broker 5 % of a core."""
WARM_UP_EVENTS = 20_000
FIRST_NUMBER = 1_000_000
"""The number of the first event after a warm-up."""
STALLED_AFTER_SECONDS = 120.0
"""Without a new event in the topic for this long, the run is given up."""


@dataclass(frozen=True)
class Drain:
    events: int
    rate: float
    """Events per second, with start."""
    warm_rate: float
    done: float
    """Seconds from the last event in Kafka until the relay had recorded all as published."""
    cost: Cost
    """From the start of the process until all were recorded as published."""
    warm_cost: Cost
    """From the first event in Kafka until all were recorded as published."""
    load_wal: float
    memory: float
    duplicates: int
    violations: int

    def row(self) -> dict[str, float]:
        return {
            "events/s": round(self.rate),
            "warm": round(self.warm_rate),
            "done s": round(self.done, 2),
            "relay": round(self.cost.relay, 1),
            "PG": round(self.cost.postgres, 1),
            "Kafka": round(self.cost.kafka, 1),
            "CPU": round(self.cost.cpu, 1),
            "CPU warm": round(self.warm_cost.cpu, 1),
            "WAL": round(self.cost.wal),
            "load WAL": round(self.load_wal),
            "MB": round(self.memory),
            "twice": self.duplicates,
            "disorder": self.violations,
        }


def drain(
    lab: Lab,
    system: System,
    events: int,
    keys: int,
    *,
    template: str | None = None,
    before: Callable[[Site], Callable[[], None]] | None = None,
) -> Drain:
    """`before` may change the site before the load; what it returns is called at the end."""
    events = min(events, system.drain_limit or events)
    with lab.site(system.flavour, template) as site:
        system.set_up(site)
        undo = before(site) if before else lambda: None
        meter = Meter(site)
        try:
            return _drain(system, site, meter, events, keys)
        finally:
            system.stop()
            undo()
            meter.close()


def _drain(system: System, site: Site, meter: Meter, events: int, keys: int) -> Drain:
    empty = meter.read([])
    system.load(events, keys)
    begin = meter.read([])
    system.start()
    wait_for(system, site, 1)
    reached = site.topics.size(site.topic)
    first = meter.read(system.pids)
    wait_for(system, site, events)
    wait_until_done(system)
    end = meter.read(system.pids)
    memory = system.peak_memory()
    system.stop()
    found = site.topics.contents(site.topic, keys)
    if found.distinct != events:
        raise RuntimeError(f"{system.name}: {found.distinct} of {events} events are in the topic")
    return Drain(
        events=events,
        rate=events / (found.last_at - begin.at),
        warm_rate=events / max(found.last_at - found.first_at, 0.001),
        done=max(end.at - found.last_at, 0.0),
        cost=cost(begin, end, events),
        warm_cost=cost(first, end, max(events - reached, 1)),
        load_wal=cost(empty, begin, events).wal,
        memory=memory,
        duplicates=found.duplicates,
        violations=found.violations if system.ordered else 0,
    )


def burst(lab: Lab, system: System, events: int, keys: int) -> dict[str, float]:
    """
    The backlog arrives in one transaction while the relay is up and warm.

    A drain from a cold start is hardest for a program that compiles code while it runs; this is the
    same work without that. Counted from the commit.
    """
    events = min(events, system.drain_limit or events)
    with lab.site(system.flavour) as site:
        system.set_up(site)
        meter = Meter(site)
        try:
            system.start()
            system.load(WARM_UP_EVENTS, keys)
            wait_for(system, site, WARM_UP_EVENTS)
            skip = site.topics.ends(site.topic)
            committed_at = system.load(events, keys, FIRST_NUMBER, analyse=False)
            begin = meter.read(system.pids)
            wait_for(system, site, WARM_UP_EVENTS + events)
            wait_until_done(system)
            end = meter.read(system.pids)
            found = site.topics.contents(site.topic, keys, skip)
            if found.distinct != events:
                raise RuntimeError(f"{system.name}: {found.distinct} of {events} arrived")
            return {
                "events/s": round(events / (found.last_at - committed_at)),
                "CPU": round(cost(begin, end, events).cpu, 1),
                "disorder": found.violations if system.ordered else 0,
            }
        finally:
            system.stop()
            meter.close()


def wait_until_done(system: System) -> None:
    while not system.is_done():
        system.require_running()
        time.sleep(CHECK_EVERY_SECONDS)


def wait_for(system: System, site: Site, wanted: int) -> None:
    """Wait until the topic has that many records."""
    size, progress = -1, time.monotonic()
    while (now := site.topics.size(site.topic)) < wanted:
        system.require_running()
        if now != size:
            size, progress = now, time.monotonic()
        elif time.monotonic() - progress > STALLED_AFTER_SECONDS:
            raise TimeoutError(
                f"{system.name} made no progress at {size} of {wanted} events:\n{system.log_tail()}"
            )
        time.sleep(CHECK_EVERY_SECONDS)

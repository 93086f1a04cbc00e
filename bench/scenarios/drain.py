"""
Drain: the backlog exists before the relay starts; how long until all of it has arrived?

"with start" counts from the start of the process, "warm" from the first event that arrived. A drain
counts only if every event has arrived; duplicates and events out of order are reported.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from bench.lab import Lab, Site
from bench.meter import Cost, Meter, cost
from bench.systems.base import System

CHECK_EVERY_SECONDS = 0.1
"""Between two checks of the database."""
FIRST_NUMBER = 1_000_000
"""The number of the first event after a warm-up."""
STALLED_AFTER_SECONDS = 120.0
"""If for this long nothing has arrived, the run is given up."""


@dataclass(frozen=True)
class Drain:
    events: int
    rate: float
    """Events per second, with start."""
    warm_rate: float
    done: float
    """Seconds from the last arrival until the relay had recorded all as published."""
    cost: Cost
    """From the start of the process until all were recorded as published."""
    warm_cost: Cost
    """From the first arrival until all were recorded as published."""
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
            "server": round(self.cost.server, 1),
            "CPU": round(self.cost.cpu, 1),
            "CPU warm": round(self.warm_cost.cpu, 1),
            "PG warm": round(self.warm_cost.postgres, 1),
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
    kind: str = "kafka",
    template: str | None = None,
    before: Callable[[Site], Callable[[], None]] | None = None,
) -> Drain:
    """`before` may change the site before the load; what it returns is called at the end."""
    events = min(events, system.drain_limit or events)
    with lab.site(system.flavour, template, kind) as site:
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
    to = site.destination
    empty = meter.read([])
    system.load(events, keys)
    begin = meter.read([])
    system.start()
    first_seen = wait_for(system, site, 1)
    reached = to.size(site.name)
    first = meter.read(system.pids)
    arriving = to.reachable(events)
    last_seen = wait_for(system, site, arriving)
    if arriving == events:
        wait_until_done(system)
    end = meter.read(system.pids)
    memory = system.peak_memory()
    system.stop()
    found = to.contents(site.name, keys)
    if found.distinct != arriving:
        raise RuntimeError(f"{system.name}: {found.distinct} of {arriving} events have arrived")
    first_at, last_at = found.first_at or first_seen, found.last_at or last_seen
    return Drain(
        events=events,
        rate=arriving / (last_at - begin.at),
        warm_rate=arriving / max(last_at - first_at, 0.001),
        done=max(end.at - last_at, 0.0),
        cost=cost(begin, end, arriving),
        warm_cost=cost(first, end, max(arriving - reached, 1)),
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
            warm_up = site.destination.warm_up_events
            system.load(warm_up, keys)
            wait_for(system, site, warm_up)
            committed_at = system.load(events, keys, FIRST_NUMBER, analyse=False)
            begin = meter.read(system.pids)
            last_seen = wait_for(system, site, warm_up + events)
            wait_until_done(system)
            end = meter.read(system.pids)
            found = site.destination.contents(site.name, keys, FIRST_NUMBER)
            if found.distinct != events:
                raise RuntimeError(f"{system.name}: {found.distinct} of {events} arrived")
            return {
                "events/s": round(events / ((found.last_at or last_seen) - committed_at)),
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


def wait_for(system: System, site: Site, wanted: int) -> float:
    """Wait until so many messages have arrived; returns when they were seen."""
    size, progress = -1, time.monotonic()
    while (now := site.destination.size(site.name)) < wanted:
        system.require_running()
        if now != size:
            size, progress = now, time.monotonic()
        elif time.monotonic() - progress > STALLED_AFTER_SECONDS:
            raise TimeoutError(
                f"{system.name} made no progress at {size} of {wanted} events:\n{system.log_tail()}"
            )
        time.sleep(site.destination.check_every_seconds)
    return time.time()

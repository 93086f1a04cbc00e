"""Idle: what a relay costs when it has nothing to do."""

import time
from dataclasses import dataclass

import psycopg

from bench.lab import Lab
from bench.meter import cpu_of_tree
from bench.scenarios.drain import wait_for
from bench.systems.base import System

SETTLE_SECONDS = 20.0
"""Until the pauses between two claims have grown to their longest."""

STATEMENTS = """
    SELECT calls, regexp_replace(query, '\\s+', ' ', 'g') FROM pg_stat_statements
     WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database())
       AND query NOT LIKE '%pg_stat_statements%'
     ORDER BY calls DESC, query
"""


@dataclass(frozen=True)
class Idle:
    relay: float
    postgres: float
    """Shares of a core."""
    statements: dict[str, float]
    """Calls of each per minute; BEGIN and COMMIT count if they are sent separately."""
    memory: float

    def row(self) -> dict[str, float]:
        return {
            "relay % of a core": round(self.relay * 100, 2),
            "PG % of a core": round(self.postgres * 100, 2),
            "statements/min": round(sum(self.statements.values()), 1),
            "MB": round(self.memory),
        }


def idle(lab: Lab, system: System, seconds: float) -> Idle:
    with lab.site("counting") as site:
        system.set_up(site)
        try:
            system.start()
            system.load(
                1000, 1000
            )  # it has done some work: everything that it keeps in memory is loaded
            wait_for(system, site, 1000)
            time.sleep(SETTLE_SECONDS)
            with psycopg.connect(site.dsn, autocommit=True) as conn:
                conn.execute("CREATE EXTENSION IF NOT EXISTS pg_stat_statements")
                conn.execute("SELECT pg_stat_statements_reset()")
                relay, server = _cpu(system), cpu_of_tree(site.postgres.pid)
                begin = time.monotonic()
                time.sleep(seconds)
                elapsed = time.monotonic() - begin
                relay, server = _cpu(system) - relay, cpu_of_tree(site.postgres.pid) - server
                found = conn.execute(STATEMENTS).fetchall()
            return Idle(
                relay / elapsed,
                server / elapsed,
                {query: calls / elapsed * 60 for calls, query in found},
                system.peak_memory(),
            )
        finally:
            system.stop()


def _cpu(system: System) -> float:
    return sum(cpu_of_tree(pid) for pid in system.pids)

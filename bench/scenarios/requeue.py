"""
Requeue: published events become due again, in three ways; how many per second, at what cost?

By one statement, by statements of 5,000 rows over one connection, and by the replay's own driver
with two Spark tasks. All write the same rows and pay for the same triggers and indexes; only the
driver also keeps a plan and a ledger, so only it can be stopped, repeated and resumed.
"""

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from bench.lab import Lab, Site
from bench.meter import Meter, cost
from bench.systems.base import Program
from bench.systems.ours import RELAY

BATCH_ROWS = 5000
TASKS = 2
UNTHROTTLED_EVENTS_PER_SECOND = 1_000_000

REQUEUE = """
    INSERT INTO outbox.requeued (relay_id, seqs, replay_id, reset_attempts, due)
    SELECT r.id, ARRAY(SELECT generate_series(%s::bigint, %s::bigint)), 'bench', true, now()
      FROM outbox.relay r
"""


@dataclass(frozen=True)
class Requeued:
    rate: float
    """Rows per second from the first to the last; of the driver without its start and its plan."""
    whole: float
    """Rows per second of everything, the start of Spark included."""
    postgres: float
    """Microseconds of CPU per row."""
    wal: float
    """Bytes per row; of the driver with plan and ledger."""

    def row(self) -> dict[str, float]:
        return {
            "rows/s": round(self.rate),
            "with start": round(self.whole),
            "PG": round(self.postgres, 1),
            "WAL": round(self.wal),
        }


class Driver(Program):
    """A replay of everything that is published, with Spark on this machine alone."""

    def __init__(self, site: Site, rate: int | None = None, yields: bool = True) -> None:
        folder = site.folder / "replay"
        folder.mkdir()
        super().__init__(folder, self._words_for(site, folder, rate, yields))

    @staticmethod
    def _words_for(site: Site, folder: Path, rate: int | None, yields: bool) -> list[str]:
        secret = folder / "dsn"
        secret.write_text(site.dsn)
        pace: dict[str, Any] = {"yieldToLive": yields}
        settings = {
            "id": "bench/replay@1",
            "relay": RELAY,
            "reason": "a measurement",
            "select": {"states": ["PUBLISHED"], "eventTypes": ["*"]},
            "rate": pace | ({"eventsPerSecond": rate} if rate else {}),
            "store": {"dsn": {"file": str(secret)}},
            "http": {"host": "127.0.0.1", "port": 0},
        }
        config = folder / "replay.json"
        config.write_text(json.dumps(settings))
        submit = f"--master local[{TASKS}] --conf spark.ui.enabled=false pyspark-shell"
        return [
            *("env", f"PYSPARK_SUBMIT_ARGS={submit}", f"PYSPARK_PYTHON={sys.executable}"),
            *(sys.executable, "-m", "outbox_spark", "--config", str(config)),
        ]


How = Callable[[Site], float]
"""Requeues all rows; returns how many seconds the rows themselves took."""


def single_statement(site: Site) -> float:
    return _requeue(site, [(1, _last_seq(site))])


def batches(site: Site) -> float:
    last = _last_seq(site)
    firsts = range(1, last + 1, BATCH_ROWS)
    return _requeue(site, [(n, min(n + BATCH_ROWS - 1, last)) for n in firsts])


def _last_seq(site: Site) -> int:
    with psycopg.connect(site.dsn) as conn:
        row = conn.execute("SELECT max(seq) FROM outbox.event").fetchone()
    assert row is not None
    return int(row[0])


def _requeue(site: Site, ranges: list[tuple[int, int]]) -> float:
    with psycopg.connect(site.dsn, autocommit=True) as conn:
        begin = time.monotonic()
        for first, last in ranges:
            conn.execute(REQUEUE, (first, last))
        return time.monotonic() - begin


def by_spark(site: Site) -> float:
    driver = Driver(site, UNTHROTTLED_EVENTS_PER_SECOND, yields=False)
    with psycopg.connect(site.dsn, autocommit=True) as conn, driver:
        while True:
            row = conn.execute(
                "SELECT chunks_done = chunks, extract(epoch FROM clock_timestamp() -"
                " (SELECT min(at) FROM outbox.replay_ledger))::float8 FROM outbox.replay"
            ).fetchone()
            if row is not None and row[0]:
                return float(row[1])
            if not driver.running:
                raise RuntimeError(f"the driver has ended:\n{driver.log_tail()}")
            time.sleep(0.1)


WAYS: dict[str, How] = {
    "one statement": single_statement,
    "batches of 5,000, one connection": batches,
    "two Spark tasks": by_spark,
}


def requeue(lab: Lab, template: str, events: int, how: How) -> Requeued:
    with lab.site(template=template) as site, psycopg.connect(site.dsn, autocommit=True) as conn:
        conn.execute("SELECT count(*) FROM outbox.deliveries JOIN outbox.event USING (seq)")
        meter = Meter(site)
        begin = meter.read([])
        seconds = how(site)
        end = meter.read([])
        meter.close()
        row = conn.execute(
            "SELECT count(*) FROM outbox.delivery WHERE state = 'PENDING' AND hold = 'TIME'"
            " AND previous_published_at IS NOT NULL AND replay_id IS NOT NULL"
        ).fetchone()
        if row != (events,):
            raise RuntimeError(f"{row} of {events} events are due again")
    spent = cost(begin, end, events)
    return Requeued(events / seconds, events / (end.at - begin.at), spent.postgres, spent.wal)

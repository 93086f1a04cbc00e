"""
Producer: what an event costs its producer, compared with the simplest possible outbox.

That is one table with the same columns and a primary key, without triggers, rules or other indexes.
Single-row transactions, prepared, in turns; no relay runs meanwhile, so that only the work of the
insert is compared and not the relay's share of the machine.
"""

import time
from array import array
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from statistics import fmean, median

import psycopg

from bench.lab import Lab
from bench.systems.ours import Ours
from bench.workload import payload_of

BARE_TABLE = """
    CREATE TABLE bare (LIKE outbox.event INCLUDING DEFAULTS);
    CREATE SEQUENCE bare_seq;
    ALTER TABLE bare ALTER seq SET DEFAULT nextval('bare_seq'),
                     ALTER created_at SET DEFAULT now(), ADD PRIMARY KEY (seq);
"""
STATEMENTS = {
    "emit": "SELECT outbox.emit('bench.happened', %(payload)b, %(key)s)",
    "insert": (
        "INSERT INTO outbox.event (event_type, payload, ordering_key)"
        " VALUES ('bench.happened', %(payload)b, %(key)s)"
    ),
    "bare": (
        "INSERT INTO bare (event_type, payload, ordering_key)"
        " VALUES ('bench.happened', %(payload)b, %(key)s)"
    ),
}
KEYS = 1000
WARM_UP_TRANSACTIONS = 50
"""The first ones of each connection do not count: catalogue look-ups, plans, cold caches."""


@dataclass(frozen=True)
class Producing:
    medians: dict[str, float]
    """Microseconds per transaction."""
    means: dict[str, float]

    def row(self) -> dict[str, float]:
        return {
            **{f"{name} us": round(value) for name, value in self.medians.items()},
            "emit : bare": round(self.medians["emit"] / self.medians["bare"], 2),
            "insert : bare": round(self.medians["insert"] / self.medians["bare"], 2),
            "means, emit : bare": round(self.means["emit"] / self.means["bare"], 2),
        }


def producer(lab: Lab, clients: int, rounds: int, seconds: float) -> Producing:
    took: dict[str, list[int]] = {name: [] for name in STATEMENTS}
    with lab.site() as site:
        Ours("Key").set_up(site)
        with psycopg.connect(site.dsn, autocommit=True) as conn:
            conn.execute(BARE_TABLE)
        with ProcessPoolExecutor(clients, mp_context=get_context("spawn")) as pool:
            for number in range(rounds):
                names = list(STATEMENTS) if number % 2 else list(reversed(STATEMENTS))
                for name in names:
                    begin = time.monotonic_ns() + (2_000_000_000 if not number else 100_000_000)
                    calls = [
                        pool.submit(insert_for, site.dsn, STATEMENTS[name], c, begin, seconds)
                        for c in range(clients)
                    ]
                    for call in calls:
                        took[name] += call.result()
    return Producing(
        {name: median(durations) / 1000 for name, durations in took.items()},
        {name: fmean(durations) / 1000 for name, durations in took.items()},
    )


def insert_for(
    dsn: str, statement: str, client: int, begin_ns: int, seconds: float
) -> "array[int]":
    """As many as possible, one after the other; nanoseconds of each. Runs in its own process."""
    took = array("q")
    with psycopg.connect(dsn, autocommit=True, application_name="bench-producer") as conn:
        for n in range(WARM_UP_TRANSACTIONS):
            conn.execute(statement, _parameters(client, n), prepare=True)
        time.sleep(max(begin_ns - time.monotonic_ns(), 0) / 1e9)
        end = time.monotonic_ns() + int(seconds * 1e9)
        n, now = WARM_UP_TRANSACTIONS, time.monotonic_ns()
        while now < end:
            parameters = _parameters(client, n)
            now = time.monotonic_ns()
            conn.execute(statement, parameters, prepare=True)
            took.append(time.monotonic_ns() - now)
            n += 1
    return took


def _parameters(client: int, n: int) -> dict[str, object]:
    # Its own keys: clients that write the same key wait for each other by design.
    return {"key": f"key-{client}-{n % KEYS}", "payload": payload_of(n)}

"""
The lab: the servers of one run of the bench, and a fresh database and topic for each measurement.

PostgreSQL and Kafka are as durable as in production. Only settings that would make runs differ are
changed, in the same way for every system that is measured.
"""

import itertools
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psycopg
from confluent_kafka import Producer

from bench.topics import Topics
from bench.workload import consume, payload_of
from dev.services import Kafka, Postgres, scratch
from dev.services.kafka import LONG_RUN, QUIET

Flavour = Literal["plain", "logical", "counting"]

SETTINGS = {
    "shared_buffers": "1GB",
    # A checkpoint during one run and not during another would cause most of the difference.
    "checkpoint_timeout": "1h",
    "max_wal_size": "16GB",
    "max_connections": "200",
    "log_min_messages": "warning",
}
FLAVOURS: dict[Flavour, dict[str, str]] = {
    "plain": {"wal_level": "replica"},
    # Only Debezium reads the log. The others must not pay for what only it needs.
    "logical": {"wal_level": "logical"},
    # Counting statements costs a little: enabled only where they are counted.
    "counting": {"wal_level": "replica", "shared_preload_libraries": "pg_stat_statements"},
}
PARTITIONS = 6
WARM_UP_EVENTS = 600_000
WARM_UP_SINGLE_EVENTS = 10_000
HEADERS: list[tuple[str, str | bytes | None]] = [("a-header", "its value")] * 4


@dataclass(frozen=True)
class Site:
    """The database and topic of one measurement."""

    postgres: Postgres
    kafka: Kafka
    topics: Topics
    dsn: str
    topic: str
    folder: Path


class Lab:
    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder = folder
        self._stack = stack
        self._numbers = itertools.count(1)
        self._postgres: dict[Flavour, Postgres] = {}
        self.kafka = stack.enter_context(Kafka(folder / "kafka", jvm=LONG_RUN))
        self.topics = Topics(self.kafka.bootstrap)
        self._warm_up()

    def postgres(self, flavour: Flavour) -> Postgres:
        """Started at its first use; an idle server does not measurably affect the others."""
        if flavour not in self._postgres:
            server = Postgres(self._folder / flavour, {**SETTINGS, **FLAVOURS[flavour]})
            self._postgres[flavour] = self._stack.enter_context(server)
        return self._postgres[flavour]

    @contextmanager
    def site(self, flavour: Flavour = "plain", template: str | None = None) -> Iterator[Site]:
        """A database, as a copy of `template` if given, and a topic; both are deleted again."""
        postgres = self.postgres(flavour)
        name = f"bench_{next(self._numbers)}"
        folder = self._folder / name
        folder.mkdir()
        dsn = copy_of(postgres, template, name) if template else postgres.create_database(name)
        self.topics.create(name, PARTITIONS)
        try:
            yield Site(postgres, self.kafka, self.topics, dsn, name, folder)
        finally:
            self.topics.delete(name)
            postgres.drop_database(name)

    def _warm_up(self) -> None:
        """
        The broker's JVM compiles code while it works: the first measurement would pay for that.
        Measured: a first drain cost 18 microseconds per event, a seventh 9. So both kinds of work
        that follow, large requests and single events that a consumer waits for, are done until it
        has settled.
        """
        self.topics.create("warm-up", PARTITIONS)
        producer = Producer(
            {
                "bootstrap.servers": self.kafka.bootstrap,
                "enable.idempotence": True,
                "linger.ms": 0,
                **QUIET,
            }
        )
        for n in range(WARM_UP_EVENTS):
            while True:
                try:
                    producer.produce("warm-up", payload_of(n), key=b"%d" % n, headers=HEADERS)
                    break
                except BufferError:
                    producer.poll(0.1)
        producer.flush(60)
        until = time.monotonic_ns() + 120_000_000_000
        with ThreadPoolExecutor(1) as pool:
            ends = self.topics.ends("warm-up")
            reading = pool.submit(
                consume, self.kafka.bootstrap, "warm-up", ends, 0, WARM_UP_SINGLE_EVENTS, until
            )
            for n in range(WARM_UP_SINGLE_EVENTS):
                producer.produce("warm-up", payload_of(n), key=b"%d" % n)
                producer.flush(10)
            reading.result()
        self.topics.delete("warm-up")
        time.sleep(5)  # it compiles its hot code now, while it works


def copy_of(postgres: Postgres, template: str, name: str) -> str:
    """File by file: through the log, which is the default, gigabytes take minutes."""
    with psycopg.connect(postgres.dsn(), autocommit=True) as conn:
        conn.execute(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY file_copy")
    return postgres.dsn(name)


@contextmanager
def lab() -> Iterator[Lab]:
    with scratch() as folder, ExitStack() as stack:
        yield Lab(folder, stack)

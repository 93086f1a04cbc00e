"""
The lab: the servers of one run of the bench, and a fresh database and destination for each
measurement.

PostgreSQL and the servers that events go to are as durable as in production. Only settings that
would make runs differ are changed, in the same way for every system that is measured.
"""

import itertools
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psycopg

from bench.destinations import KINDS
from bench.destinations.base import Destination
from dev.services import Postgres, scratch

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


@dataclass(frozen=True)
class Site:
    """The database of one measurement, and where its events go; both have the same name."""

    postgres: Postgres
    destination: Destination
    dsn: str
    name: str
    folder: Path


class Lab:
    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder = folder
        self._stack = stack
        self._numbers = itertools.count(1)
        self._postgres: dict[Flavour, Postgres] = {}
        self._destinations: dict[str, Destination] = {}

    def postgres(self, flavour: Flavour) -> Postgres:
        """Started at its first use; an idle server does not measurably affect the others."""
        if flavour not in self._postgres:
            server = Postgres(self._folder / flavour, {**SETTINGS, **FLAVOURS[flavour]})
            self._postgres[flavour] = self._stack.enter_context(server)
        return self._postgres[flavour]

    def destination(self, kind: str) -> Destination:
        """Likewise."""
        if kind not in self._destinations:
            folder = self._folder / f"to-{kind}"
            folder.mkdir()
            self._destinations[kind] = KINDS[kind](folder, self._stack)
        return self._destinations[kind]

    @contextmanager
    def site(
        self, flavour: Flavour = "plain", template: str | None = None, kind: str = "kafka"
    ) -> Iterator[Site]:
        """A database, as a copy of `template` if given, and a place for its events; both are
        deleted again."""
        postgres = self.postgres(flavour)
        destination = self.destination(kind)
        name = f"bench_{next(self._numbers)}"
        folder = self._folder / name
        folder.mkdir()
        dsn = copy_of(postgres, template, name) if template else postgres.create_database(name)
        destination.create(name)
        try:
            yield Site(postgres, destination, dsn, name, folder)
        finally:
            destination.delete(name)
            postgres.drop_database(name)


def copy_of(postgres: Postgres, template: str, name: str) -> str:
    """File by file: through the log, which is the default, gigabytes take minutes."""
    with psycopg.connect(postgres.dsn(), autocommit=True) as conn:
        conn.execute(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY file_copy")
    return postgres.dsn(name)


@contextmanager
def lab() -> Iterator[Lab]:
    with scratch() as folder, ExitStack() as stack:
        yield Lab(folder, stack)

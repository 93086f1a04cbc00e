"""What the scenarios need from a system: set it up, fill its table, start and stop it."""

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import psycopg

from bench.lab import Flavour, Site
from bench.meter import peak_memory
from dev.services import Server


class Program(Server):
    """One process of a system. It counts as up at once, because its start is part of the work."""

    def __init__(self, folder: Path, command: list[str]) -> None:
        super().__init__(folder)
        self._words = command

    def _command(self) -> list[str]:
        return self._words

    def _prepare(self) -> None:
        pass

    def _is_ready(self) -> bool:
        return self.running


class System(ABC):
    flavour: ClassVar[Flavour] = "plain"
    drain_limit: ClassVar[int | None] = None
    """For slow systems: a drain of more events than this would take too long."""
    ordered: bool
    load_sql: str
    """INSERT ... SELECT with the parameters of a `Shape` (see `bench.workload`)."""
    insert_sql: str
    """One event, with the parameters key and payload."""
    wake_sql: ClassVar[str | None] = None
    """What its own producer sends with a transaction of several events, as a SELECT."""
    table: ClassVar[str]
    """The tables of the backlog: analysed after a load, because a fresh table has no statistics."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.programs: list[Program] = []

    def set_up(self, site: Site) -> None:
        """Create tables and register; events that are inserted from now on will be relayed."""
        self.site = site
        self._set_up()
        self.programs = [
            Program(site.folder / f"{self.name}-{i}", command)
            for i, command in enumerate(self._commands())
        ]

    @abstractmethod
    def _set_up(self) -> None: ...

    @abstractmethod
    def _commands(self) -> list[list[str]]:
        """What to run: one command for each process."""

    @abstractmethod
    def is_done(self) -> bool:
        """Has it also recorded that everything was published?"""

    def load(self, events: int, keys: int, first: int = 0, *, analyse: bool = True) -> float:
        """Insert all in one transaction; returns when it was committed."""
        with psycopg.connect(self.site.dsn, autocommit=True) as conn:
            shape = self.site.destination.shape
            conn.execute(self.load_sql, shape.parameters(events, keys, first))
            committed_at = time.time()
            if analyse:
                conn.execute(f"ANALYZE {self.table}")
        return committed_at

    def batch_sql(self) -> str:
        """A few events in one transaction, with the parameters of `load_sql`."""
        if not self.wake_sql:
            return self.load_sql
        return f"WITH emitted AS ({self.load_sql} RETURNING 1) {self.wake_sql}"

    def start(self) -> None:
        for program in self.programs:
            program.start()

    def stop(self) -> None:
        for program in self.programs:
            program.stop()

    @property
    def pids(self) -> list[int]:
        return [program.pid for program in self.programs]

    def require_running(self) -> None:
        for program in self.programs:
            if not program.running:
                raise RuntimeError(f"{self.name} has ended:\n{program.log_tail()}")

    def log_tail(self) -> str:
        return "\n".join(program.log_tail() for program in self.programs)

    def peak_memory(self) -> float:
        """Peak memory of its largest process, in MB."""
        return max(map(peak_memory, self.pids))

    def describe(self) -> Mapping[str, object]:
        """Its settings, for the record."""
        return {}

    def _one(self, query: str) -> object:
        with psycopg.connect(self.site.dsn, autocommit=True) as conn:
            row = conn.execute(query).fetchone()
        assert row is not None
        return row[0]

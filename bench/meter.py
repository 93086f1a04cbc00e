"""
The meter: CPU of process trees, bytes of WAL, peak memory; read before and after, and subtracted.

CPU comes from /proc and counts whole trees. Children that have ended are in their parent's figures
(cutime, cstime), so backends that came and went are not lost.
"""

import os
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import psycopg

from bench.lab import Site

TICK_SECONDS = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Reading:
    at: float
    relay: float
    postgres: float
    server: float
    """Seconds of CPU since each process was started."""
    wal: int
    """Position in the write-ahead log."""


@dataclass(frozen=True)
class Cost:
    """Per event: microseconds of CPU, and bytes of WAL."""

    relay: float
    postgres: float
    server: float
    wal: float

    @property
    def cpu(self) -> float:
        return self.relay + self.postgres + self.server

    def row(self) -> dict[str, float]:
        return {**{k: round(v, 1) for k, v in asdict(self).items()}, "cpu": round(self.cpu, 1)}


class Meter:
    def __init__(self, site: Site) -> None:
        self._site = site
        # Kept open: a connection per reading would itself cost CPU.
        self._conn = psycopg.connect(site.dsn, autocommit=True, application_name="bench-meter")

    def read(self, relay: Iterable[int]) -> Reading:
        row = self._conn.execute("SELECT pg_current_wal_insert_lsn() - '0/0'").fetchone()
        assert row is not None
        parents = _parents()
        return Reading(
            at=time.time(),
            relay=sum(cpu_of_tree(pid, parents) for pid in relay),
            postgres=cpu_of_tree(self._site.postgres.pid, parents),
            server=cpu_of_tree(self._site.destination.server.pid, parents),
            wal=int(row[0]),
        )

    def close(self) -> None:
        self._conn.close()


def cost(before: Reading, after: Reading, events: int) -> Cost:
    def per_event(name: str) -> float:
        spent: float = getattr(after, name) - getattr(before, name)
        return spent * 1e6 / events

    wal = (after.wal - before.wal) / events
    return Cost(per_event("relay"), per_event("postgres"), per_event("server"), wal)


def cpu_of_tree(root: int, parents: dict[int, int] | None = None) -> float:
    parents = _parents() if parents is None else parents
    level, tree = {root}, {root}
    while level := {child for child, parent in parents.items() if parent in level} - tree:
        tree |= level
    return sum(map(_ticks, tree)) * TICK_SECONDS


def peak_memory(pid: int) -> float:
    """The most that the process ever had in memory, in MB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise ValueError(f"process {pid} reports no peak of memory")


def _parents() -> dict[int, int]:
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        if fields := _stat(int(entry.name)):
            found[int(entry.name)] = int(fields[1])
    return found


def _ticks(pid: int) -> int:
    # utime, stime, cutime, cstime: fields 14 to 17 of proc(5), 11 to 14 behind the name.
    return sum(map(int, _stat(pid)[11:15]))


def _stat(pid: int) -> list[str]:
    """The fields after the command's name, which may contain blanks; none if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []

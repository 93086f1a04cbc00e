"""PostgreSQL: a cluster of its own in a folder, durable unless its settings change that."""

import os
import re
import shutil
import signal
from collections.abc import Mapping
from pathlib import Path

import psycopg
from psycopg import sql

from dev.services.process import Server, ServerError, free_port

SUPERUSER = "postgres"

DURABLE = {"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on"}
"""PostgreSQL's own defaults, spelled out: what we prove and measure holds only with them."""


class Postgres(Server):
    """
    `settings` are read at every start: change them and `restart()`.

    After `kill()`, `start()` recovers as after a power cut. The stale postmaster.pid and shared
    memory are PostgreSQL's own business: it sees that no process of the old cluster is left.
    """

    stop_signal = signal.SIGINT  # "fast": ends sessions instead of waiting for them
    orphan_signal = signal.SIGINT  # not SIGKILL, which would leave the shared memory behind
    refuses_root = True

    def __init__(self, folder: Path, settings: Mapping[str, str] | None = None) -> None:
        super().__init__(folder)
        self.data = folder / "data"
        self.port = free_port()
        self.settings = {**DURABLE, **(settings or {})}
        self._bin = find_binaries()

    def dsn(self, dbname: str = "postgres", user: str | None = None) -> str:
        return f"postgresql://{user or SUPERUSER}@127.0.0.1:{self.port}/{dbname}"

    def create_database(self, name: str, template: str | None = None) -> str:
        """Create it, as a copy of `template` if given, and return its DSN."""
        statement = sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(
            sql.Identifier(name), sql.Identifier(template or "template1")
        )
        self._execute(statement)
        return self.dsn(name)

    def drop_database(self, name: str) -> None:
        """Drop it, ending whatever is still connected."""
        self._execute(
            sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name))
        )

    def standby(self, folder: Path) -> "Postgres":
        """One that follows this one, which must be running; it is not started yet."""
        made = Postgres(folder)
        folder.mkdir(parents=True)
        shutil.chown(folder, self.data.owner(), self.data.group())
        made._run(
            *(self._bin / "pg_basebackup", "--pgdata", made.data, "--dbname", self.dsn()),
            *("--write-recovery-conf", "--checkpoint=fast", "--no-sync"),
        )
        conf = made.data / "postgresql.conf"
        conf.write_text(conf.read_text().replace(str(self.folder), str(folder)))
        return made

    def _execute(self, statement: sql.Composed) -> None:
        with psycopg.connect(self.dsn(), autocommit=True) as conn:
            conn.execute(statement)

    def _prepare(self) -> None:
        if not self.data.exists():
            self._run(
                *(self._bin / "initdb", "--pgdata", self.data, "--username", SUPERUSER),
                *("--auth", "trust", "--encoding", "UTF8", "--locale", "C.UTF-8", "--no-sync"),
            )
            with (self.data / "postgresql.conf").open("a") as conf:
                conf.write(f"include '{self.folder}/settings.conf'\n")
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": str(self.folder),
            **self.settings,
        }
        lines = (f"{name} = '{value}'\n" for name, value in settings.items())
        (self.folder / "settings.conf").write_text("".join(lines))

    def _command(self) -> list[str]:
        return [str(self._bin / "postgres"), "-D", str(self.data)]

    def _is_ready(self) -> bool:
        try:
            psycopg.connect(self.dsn(), connect_timeout=2).close()
        except psycopg.OperationalError:  # not listening yet, or still recovering
            return False
        return True


def find_binaries() -> Path:
    """PATH first, then Debian's folders, the newest version of them."""
    if found := shutil.which("initdb"):
        return Path(os.path.realpath(found)).parent
    versions = Path("/usr/lib/postgresql").glob("*/bin/initdb")
    if newest := max(versions, key=_version, default=None):
        return newest.parent
    raise ServerError("PostgreSQL is not installed: apt-get install postgresql (or: make dev)")


def _version(initdb: Path) -> float:
    number = re.match(r"\d+(\.\d+)?", initdb.parent.parent.name)
    return float(number[0]) if number else 0.0

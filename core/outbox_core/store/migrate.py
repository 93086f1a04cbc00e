"""
Migrations: numbered SQL files, applied in order, each once, all in one transaction.

Called by `cli` (`outbox-relay migrate`) and as an init container. Under an advisory lock of the
transaction, so two at once are safe, also behind a pooler. A released file is never edited.

Producers and relays queue up behind a lock that a migration waits for. So it waits for seconds
only, then rolls back, lets them pass, and tries again.

Old and new programs share a schema during every rollout, and after one that was taken back. So a
program works on a newer schema, unless a migration says that it no longer serves it, in a line of
its own: `-- serves programs from version N on`. That is kept with the record of the migration.
"""

import hashlib
import logging
import random
import re
import time
from datetime import timedelta
from importlib import resources
from typing import NamedTuple

from psycopg import errors as pg

from outbox_core.contract.values import format_duration
from outbox_core.errors import SchemaMissing, SchemaOutdated, SchemaTooNew, StoreBusy
from outbox_core.store.blockers import blockers
from outbox_core.store.connection import Connection, connect, translated

log = logging.getLogger("outbox.migrate")

LOCK_TIMEOUT = timedelta(seconds=2)
"""How long a migration waits for a table's lock, and so how long others queue up behind it. Above
PostgreSQL's deadlock_timeout (1 s), after which it ends an autovacuum that is in the way."""
PATIENCE = timedelta(minutes=5)
"""How long it goes on trying."""
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 15.0
"""Seconds between two tries; doubled each time."""


class Migration(NamedTuple):
    version: int
    name: str
    sql: str

    @property
    def serves(self) -> int:
        """The oldest program that works with it, as the newest migration that it knows; 0: all."""
        said = re.search(r"^-- serves programs from version (\d+) on$", self.sql, re.MULTILINE)
        return int(said[1]) if said else 0

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.sql.encode()).hexdigest()[:16]


class MigrationReport(NamedTuple):
    before: int
    after: int
    applied: list[str]


# lock_timeout counts for advisory locks as well: another migration may take long, and nobody queues
# up behind us while we wait for it. Local, so that neither stays with a pooler's backend.
SET_LOCK_TIMEOUT = "SELECT set_config('lock_timeout', %s::text, true)"  # milliseconds
LOCK = "SELECT pg_advisory_xact_lock(hashtextextended('outbox.migrate', 0))"

BOOK = """
    CREATE SCHEMA IF NOT EXISTS outbox;
    CREATE TABLE IF NOT EXISTS outbox.schema_version (
        version    integer     PRIMARY KEY,
        name       text        NOT NULL,
        checksum   text        NOT NULL,
        applied_at timestamptz NOT NULL DEFAULT now(),
        applied_by text        NOT NULL DEFAULT current_user,
        serves     integer     -- the oldest program that works with it; NULL = nobody knows
    );
"""


def migrations() -> list[Migration]:
    """Those that this program knows."""
    folder = resources.files("outbox_core.schema") / "migrations"
    found = []
    for file in sorted(folder.iterdir(), key=lambda f: f.name):
        if match := re.fullmatch(r"(\d{4})_(\w+)\.sql", file.name):
            found.append(Migration(int(match[1]), match[2], file.read_text()))
    return found


KNOWN = max(m.version for m in migrations())


def migrate(dsn: str, patience: timedelta = PATIENCE) -> MigrationReport:
    """Bring the schema to this program's version. Repeating it changes nothing."""
    until = time.monotonic() + patience.total_seconds()
    pause = FIRST_PAUSE
    with connect(dsn, "outbox-migrate") as conn, translated():
        while True:
            try:
                with conn.transaction():
                    _wait_for_others(conn, until)
                    return _bring_up_to_date(conn)
            except pg.LockNotAvailable as error:
                _make_way(conn, pause * random.uniform(0.8, 1.2), until, error)
                pause = min(LONGEST_PAUSE, 2 * pause)


def _wait_for_others(conn: Connection, until: float) -> None:
    """Other migrations, for as long as we have: nobody queues up behind us meanwhile."""
    conn.execute(SET_LOCK_TIMEOUT, (max(1, round((until - time.monotonic()) * 1000)),))
    try:
        conn.execute(LOCK)
    except pg.LockNotAvailable as error:
        raise StoreBusy(
            "another `outbox-relay migrate` has been at work for as long as this one could wait; "
            "run it again when that one has ended (pg_stat_activity shows it as outbox-migrate)"
        ) from error


def _bring_up_to_date(conn: Connection) -> MigrationReport:
    found = installed(conn)
    refuse_newer(conn, found)
    if found >= KNOWN:
        return MigrationReport(found, found, [])
    conn.execute(SET_LOCK_TIMEOUT, (round(LOCK_TIMEOUT.total_seconds() * 1000),))
    if found == 0:
        conn.execute(BOOK)
    applied = []
    for migration in migrations():
        if migration.version <= found:
            continue
        conn.execute(migration.sql.encode())
        conn.execute(
            "INSERT INTO outbox.schema_version (version, name, checksum, serves)"
            " VALUES (%s, %s, %s, %s)",
            (migration.version, migration.name, migration.checksum, migration.serves),
        )
        applied.append(f"{migration.version:04}_{migration.name}")
    return MigrationReport(found, KNOWN, applied)


def _make_way(conn: Connection, pause: float, until: float, error: Exception) -> None:
    """Those who queued up behind us go first; or it is time to give up."""
    seen = "; ".join(map(str, blockers(conn))) or "nobody any more"
    if time.monotonic() + pause > until:
        raise StoreBusy(
            f"the migration did not get a lock on the outbox's tables; nothing was changed. "
            f"In the way: {seen}. End that transaction, or wait for it, and run `outbox-relay "
            "migrate` again; --wait makes it try for longer"
        ) from error
    log.warning(
        "a lock that the migration needs was not free within %s: nothing was changed, and it is "
        "tried again in %.1f s. In the way: %s",
        *(format_duration(LOCK_TIMEOUT), pause, seen),
        extra={"event": "migration_waits"},
    )
    time.sleep(pause)


def installed(conn: Connection) -> int:
    """The version of the schema in this database; 0 where there is none."""
    with translated():
        there = conn.execute("SELECT to_regclass('outbox.schema_version')").fetchone()
        if there is None or there[0] is None:
            return 0
        row = conn.execute("SELECT coalesce(max(version), 0) FROM outbox.schema_version").fetchone()
    assert row is not None
    return int(row[0])


SERVES = """
    SELECT bool_and(coalesce((to_jsonb(v)->>'serves')::integer <= %(known)s, false))
      FROM outbox.schema_version v WHERE version > %(known)s
"""


def serves_us(conn: Connection) -> bool:
    """Of a schema that is newer than this program."""
    with translated():
        row = conn.execute(SERVES, {"known": KNOWN}).fetchone()
    assert row is not None
    return bool(row[0])


def refuse_newer(conn: Connection, found: int) -> None:
    if found > KNOWN and not serves_us(conn):
        raise SchemaTooNew(
            f"the outbox schema has version {found}, this program knows {KNOWN}: "
            "use a newer outbox-relay; nothing was changed"
        )


def require_current(conn: Connection) -> None:
    """A relay starts only on a schema that it knows, or that says that it serves it."""
    found = installed(conn)
    refuse_newer(conn, found)
    if found == 0:
        raise SchemaMissing("this database has no outbox schema: run `outbox-relay migrate`")
    if found < KNOWN:
        raise SchemaOutdated(
            f"the outbox schema has version {found}, this program needs {KNOWN}: "
            "run `outbox-relay migrate`"
        )

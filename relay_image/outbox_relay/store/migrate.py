"""
Migrations: numbered SQL files, applied in order, each once, all in one transaction.

Called by `cli` (`outbox-relay migrate`) and as an init container. Under an advisory lock of the
transaction, so two at once are safe, also behind a pooler. A released file is never edited.

Old and new programs share a schema during every rollout, and after one that was taken back. So a
program works on a newer schema, unless a migration says that it no longer serves it, in a line of
its own: `-- serves programs from version N on`. That is kept with the record of the migration.
"""

import hashlib
import re
from importlib import resources
from typing import NamedTuple

from outbox_relay.errors import SchemaMissing, SchemaOutdated, SchemaTooNew
from outbox_relay.store.connection import Connection, connect, translated


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
    folder = resources.files(__package__) / "migrations"
    found = []
    for file in sorted(folder.iterdir(), key=lambda f: f.name):
        if match := re.fullmatch(r"(\d{4})_(\w+)\.sql", file.name):
            found.append(Migration(int(match[1]), match[2], file.read_text()))
    return found


KNOWN = max(m.version for m in migrations())


def migrate(dsn: str) -> MigrationReport:
    """Bring the schema to this program's version. Repeating it changes nothing."""
    with connect(dsn, "outbox-migrate") as conn, translated(), conn.transaction():
        conn.execute(LOCK)
        found = installed(conn)
        refuse_newer(conn, found)
        if found >= KNOWN:
            return MigrationReport(found, found, [])
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

"""
Migrate: brings the schema of a database to what this program carries, in one transaction.

First the migrations that are missing, in order; then the functions and the triggers, if their text
is not the one that was applied last. Which files those are, and the rules for changing them, is in
`outbox_core.schema.files`.

Called by `cli` (`outbox-relay migrate`) and as an init container. Under an advisory lock of the
transaction, so two at once are safe, also behind a pooler.

Producers and relays queue up behind a lock that a migration waits for. So it waits for seconds
only, then rolls back, lets them pass, and tries again.

Old and new programs share a schema during every rollout, and after one that was taken back. So a
program works on a newer schema, unless a migration says that it no longer serves it, in a line of
its own: `-- serves programs from version N on`. That is kept with the record of the migration. A
schema that is newer than this program keeps its functions too. Whether the functions are this
program's is no condition for a relay's start, because another build of the same version may have
applied its own: `check` reports it.
"""

import logging
import random
import time
from datetime import timedelta
from typing import NamedTuple

from psycopg import errors as pg

from outbox_core.contract.values import format_duration
from outbox_core.errors import SchemaMissing, SchemaOutdated, SchemaTooNew, StoreBusy
from outbox_core.schema.files import KNOWN as KNOWN
from outbox_core.schema.files import Code, code, migrations
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


class MigrationReport(NamedTuple):
    before: int
    after: int
    applied: list[str]
    """Migrations by number and name, and parts of the code by name."""


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
    CREATE TABLE IF NOT EXISTS outbox.schema_code (
        part       text        PRIMARY KEY,  -- functions, triggers
        digest     text        NOT NULL,
        applied_at timestamptz NOT NULL DEFAULT now(),
        applied_by text        NOT NULL DEFAULT current_user
    );
"""

# The bodies of functions are not checked: so the files may name each other in any order. That they
# hold together is tested.
BEFORE_CODE = "SET LOCAL check_function_bodies = off"

NOTE_CODE = """
    INSERT INTO outbox.schema_code (part, digest) VALUES (%s, %s)
        ON CONFLICT (part) DO UPDATE SET digest = EXCLUDED.digest, applied_at = now(),
            applied_by = current_user
"""


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
    found = usable(conn)
    if found > KNOWN:
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
    for part in other_code(conn):
        conn.execute(BEFORE_CODE)
        conn.execute(part.sql.encode())
        conn.execute(NOTE_CODE, (part.name, part.digest))
        applied.append(part.name)
    return MigrationReport(found, KNOWN, applied)


def other_code(conn: Connection) -> list[Code]:
    """The parts of the code that are not in this database as this program has them."""
    with translated():
        rows = conn.execute("SELECT part, digest FROM outbox.schema_code").fetchall()
    applied: dict[str, str] = dict(rows)
    return [part for part in code() if applied.get(part.name) != part.digest]


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


class Book(NamedTuple):
    """What this database has of the migrations."""

    version: int
    """0: there is no schema."""
    checksums: dict[int, str]


BOOKED = """
    SELECT coalesce(max(version), 0), coalesce(jsonb_object_agg(version, checksum), '{}')
      FROM outbox.schema_version
"""


def booked(conn: Connection) -> Book:
    with translated():
        there = conn.execute("SELECT to_regclass('outbox.schema_version')").fetchone()
        if there is None or there[0] is None:
            return Book(0, {})
        row = conn.execute(BOOKED).fetchone()
    assert row is not None
    return Book(row[0], {int(version): checksum for version, checksum in row[1].items()})


def foreign(book: Book) -> list[str]:
    """The migrations of this program in whose place the database has others."""
    return [
        f"{m.version:04}_{m.name}"
        for m in migrations()
        if book.checksums.get(m.version, m.checksum) != m.checksum
    ]


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


def usable(conn: Connection) -> int:
    """The version of the schema in this database, 0 where there is none. Refused where this program
    can do nothing with it."""
    book = booked(conn)
    if others := foreign(book):
        raise SchemaOutdated(
            f"the outbox schema was made before the first release, by another {', '.join(others)} "
            "than this program has, and cannot be brought up to date; nothing was changed. Save "
            "what you need of it, DROP SCHEMA outbox CASCADE, and run `outbox-relay migrate`"
        )
    if book.version > KNOWN and not serves_us(conn):
        raise SchemaTooNew(
            f"the outbox schema has version {book.version}, this program knows {KNOWN}: "
            "use a newer outbox-relay; nothing was changed"
        )
    return book.version


def require_current(conn: Connection) -> None:
    """A relay starts only on a schema that it knows, or that says that it serves it."""
    found = usable(conn)
    if found == 0:
        raise SchemaMissing("this database has no outbox schema: run `outbox-relay migrate`")
    if found < KNOWN:
        raise SchemaOutdated(
            f"the outbox schema has version {found}, this program needs {KNOWN}: "
            "run `outbox-relay migrate`"
        )

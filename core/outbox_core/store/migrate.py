"""
Migrate: brings the schema of a database to this program's version, in one transaction.

First the missing migrations, in order; then the functions and the triggers, if their text differs
from what was applied last. `outbox_core.schema.files` lists the files and the rules for changing
them.

Called by `cli` (`outbox-relay migrate`), also in an init container. It holds an advisory lock of
the transaction, so two at once are safe, also behind a pooler.

Producers and relays queue up behind a lock that a migration waits for. So it waits only seconds,
then rolls back, lets them pass, and tries again.

Old and new programs share a schema during every rollout, and after a rollback. So a program works
on a newer schema, unless a migration no longer serves it, which it declares in a line of its own:
`-- serves programs from version N on`. That is stored with the record of the migration. A schema
that is newer than this program keeps its functions too. A relay starts even if the functions are
not this program's, because another build of the same version may have applied its own: `check`
reports it.
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
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 15.0
"""Between two tries; doubled each time."""


class MigrationReport(NamedTuple):
    before: int
    after: int
    applied: list[str]
    """Migrations by number and name, and parts of the code by name."""


# lock_timeout applies to advisory locks as well: another migration may take long, and nobody queues
# up behind us while we wait for it. Local, so that neither stays with a pooler's backend.
SET_LOCK_TIMEOUT = "SELECT set_config('lock_timeout', %s::text, true)"  # milliseconds
LOCK = "SELECT pg_advisory_xact_lock(hashtextextended('outbox.migrate', 0))"

CREATE_RECORDS = """
    CREATE SCHEMA IF NOT EXISTS outbox;
    CREATE TABLE IF NOT EXISTS outbox.schema_version (
        version    integer     PRIMARY KEY,
        name       text        NOT NULL,
        checksum   text        NOT NULL,
        applied_at timestamptz NOT NULL DEFAULT now(),
        applied_by text        NOT NULL DEFAULT current_user,
        serves     integer     -- the oldest program that works with it; NULL = unknown
    );
    CREATE TABLE IF NOT EXISTS outbox.schema_code (
        part       text        PRIMARY KEY,  -- functions, triggers
        digest     text        NOT NULL,
        applied_at timestamptz NOT NULL DEFAULT now(),
        applied_by text        NOT NULL DEFAULT current_user
    );
"""

# The bodies of functions are not checked, so the files may refer to each other in any order. Tests
# check that they fit together.
BEFORE_CODE = "SET LOCAL check_function_bodies = off"

RECORD_CODE = """
    INSERT INTO outbox.schema_code (part, digest) VALUES (%s, %s)
        ON CONFLICT (part) DO UPDATE SET digest = EXCLUDED.digest, applied_at = now(),
            applied_by = current_user
"""


def migrate(dsn: str, patience: timedelta = PATIENCE) -> MigrationReport:
    """Bring the schema to this program's version. Repeating it changes nothing."""
    until = time.monotonic() + patience.total_seconds()
    pause = FIRST_PAUSE_SECONDS
    with connect(dsn, "outbox-migrate") as conn, translated():
        while True:
            try:
                with conn.transaction():
                    _wait_for_others(conn, until)
                    return _bring_up_to_date(conn)
            except pg.LockNotAvailable as error:
                _let_others_pass(conn, pause * random.uniform(0.8, 1.2), until, error)
                pause = min(LONGEST_PAUSE_SECONDS, 2 * pause)


def _wait_for_others(conn: Connection, until: float) -> None:
    """Wait for other migrations, until the deadline: nobody queues up behind us meanwhile."""
    conn.execute(SET_LOCK_TIMEOUT, (max(1, round((until - time.monotonic()) * 1000)),))
    try:
        conn.execute(LOCK)
    except pg.LockNotAvailable as error:
        raise StoreBusy(
            "another `outbox-relay migrate` is still running, and this one has waited as long as "
            "it may; run it again when that one has ended (pg_stat_activity shows it as "
            "outbox-migrate)"
        ) from error


def _bring_up_to_date(conn: Connection) -> MigrationReport:
    found = usable(conn)
    if found > KNOWN:
        return MigrationReport(found, found, [])
    conn.execute(SET_LOCK_TIMEOUT, (round(LOCK_TIMEOUT.total_seconds() * 1000),))
    if found == 0:
        conn.execute(CREATE_RECORDS)
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
        conn.execute(RECORD_CODE, (part.name, part.digest))
        applied.append(part.name)
    return MigrationReport(found, KNOWN, applied)


def other_code(conn: Connection) -> list[Code]:
    """The parts of the code that differ between this database and this program."""
    with translated():
        rows = conn.execute("SELECT part, digest FROM outbox.schema_code").fetchall()
    applied: dict[str, str] = dict(rows)
    return [part for part in code() if applied.get(part.name) != part.digest]


def _let_others_pass(conn: Connection, pause: float, until: float, error: Exception) -> None:
    """Let the sessions pass that queued up behind us; or give up after the deadline."""
    seen = "; ".join(map(str, blockers(conn))) or "no session any more"
    if time.monotonic() + pause > until:
        raise StoreBusy(
            f"the migration did not get a lock on the outbox's tables; nothing was changed. "
            f"Blocked by: {seen}. End that transaction, or wait for it, and run `outbox-relay "
            "migrate` again; --wait makes it try for longer"
        ) from error
    log.warning(
        "the migration did not get a lock within %s; nothing was changed, and it tries again in "
        "%.1f s. Blocked by: %s",
        *(format_duration(LOCK_TIMEOUT), pause, seen),
        extra={"event": "migration_waits"},
    )
    time.sleep(pause)


class Applied(NamedTuple):
    """The migrations that were applied to this database."""

    version: int
    """0: there is no schema."""
    checksums: dict[int, str]


READ_APPLIED = """
    SELECT coalesce(max(version), 0), coalesce(jsonb_object_agg(version, checksum), '{}')
      FROM outbox.schema_version
"""


def read_applied(conn: Connection) -> Applied:
    with translated():
        there = conn.execute("SELECT to_regclass('outbox.schema_version')").fetchone()
        if there is None or there[0] is None:
            return Applied(0, {})
        row = conn.execute(READ_APPLIED).fetchone()
    assert row is not None
    return Applied(row[0], {int(version): checksum for version, checksum in row[1].items()})


def changed_migrations(applied: Applied) -> list[str]:
    """The migrations of this program of which the database has another text."""
    return [
        f"{m.version:04}_{m.name}"
        for m in migrations()
        if applied.checksums.get(m.version, m.checksum) != m.checksum
    ]


SERVES = """
    SELECT bool_and(coalesce((to_jsonb(v)->>'serves')::integer <= %(known)s, false))
      FROM outbox.schema_version v WHERE version > %(known)s
"""


def serves_us(conn: Connection) -> bool:
    """Does a schema that is newer than this program still serve it?"""
    with translated():
        row = conn.execute(SERVES, {"known": KNOWN}).fetchone()
    assert row is not None
    return bool(row[0])


def usable(conn: Connection) -> int:
    """The version of the schema in this database, 0 if there is none. Raises an error if this
    program cannot use it."""
    applied = read_applied(conn)
    if changed := changed_migrations(applied):
        raise SchemaOutdated(
            f"the outbox schema was made before the first release, by a version of "
            f"{', '.join(changed)} that this program does not have, and cannot be brought up to "
            "date; nothing was changed. Save what you need of it, DROP SCHEMA outbox CASCADE, and "
            "run `outbox-relay migrate`"
        )
    if applied.version > KNOWN and not serves_us(conn):
        raise SchemaTooNew(
            f"the outbox schema has version {applied.version}, this program knows {KNOWN}: "
            "use a newer outbox-relay; nothing was changed"
        )
    return applied.version


def require_current(conn: Connection) -> None:
    """A relay starts only on a schema that it knows, or that declares that it serves it."""
    found = usable(conn)
    if found == 0:
        raise SchemaMissing("this database has no outbox schema: run `outbox-relay migrate`")
    if found < KNOWN:
        raise SchemaOutdated(
            f"the outbox schema has version {found}, this program needs {KNOWN}: "
            "run `outbox-relay migrate`"
        )

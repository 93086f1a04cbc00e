"""The schema comes, stays, and is not overtaken."""

import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import psycopg
import pytest
from psycopg import errors as pg

from dev.services import Postgres, scratch, wait_until
from fixtures.cli import Cli
from outbox_core.errors import (
    SchemaMissing,
    SchemaTooNew,
    SettingsError,
    StoreBusy,
    StoreError,
    StoreUnavailable,
)
from outbox_core.schema.files import KNOWN, Migration, code, migrations
from outbox_core.store import migrate as migrate_module
from outbox_core.store.connection import connect
from outbox_core.store.migrate import CREATE_RECORDS, LOCK, LOCK_TIMEOUT, migrate, require_current

pytestmark = pytest.mark.pg


def fingerprint(dsn: str) -> list[tuple[object, ...]]:
    with psycopg.connect(dsn) as conn:
        return conn.execute(
            "SELECT c.relname::text, c.oid, c.relfilenode FROM pg_class c"
            " JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = 'outbox'"
            " UNION ALL SELECT p.proname::text, p.oid, 0 FROM pg_proc p"
            " JOIN pg_namespace n ON n.oid = p.pronamespace WHERE n.nspname = 'outbox'"
            " ORDER BY 1, 2"
        ).fetchall()


def test_ek_21_an_empty_database_gets_the_schema_and_a_second_run_changes_nothing(
    empty_database: str,
) -> None:
    report = migrate(empty_database)
    assert (report.before, report.after) == (0, KNOWN)
    assert len(report.applied) == len(migrations()) + len(code())
    before = fingerprint(empty_database)
    assert migrate(empty_database).applied == []
    assert fingerprint(empty_database) == before


@pytest.fixture
def program_with(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[Migration]]:
    """Make this program one that has one more migration; all that it has."""

    def has(sql: str) -> list[Migration]:
        every = [*migrations(), Migration(KNOWN + 1, "next", sql)]
        monkeypatch.setattr(migrate_module, "KNOWN", KNOWN + 1)
        monkeypatch.setattr(migrate_module, "migrations", lambda: every)
        return every

    return has


def test_ek_21_every_older_version_comes_to_the_current_one(
    empty_database: str, program_with: Callable[[str], list[Migration]]
) -> None:
    every = program_with("ALTER TABLE outbox.relay ADD COLUMN next integer")
    reference = migrate(empty_database)
    with psycopg.connect(empty_database, autocommit=True) as conn:
        functions = (
            "SELECT count(*) FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace"
            " WHERE nspname = 'outbox'"
        )
        wanted = conn.execute(functions).fetchone()
        for stop in range(1, len(every)):
            conn.execute("DROP SCHEMA outbox CASCADE")
            conn.execute(CREATE_RECORDS.encode())
            for migration in every[:stop]:
                conn.execute(migration.sql.encode())
                conn.execute(
                    "INSERT INTO outbox.schema_version (version, name, checksum)"
                    " VALUES (%s, %s, %s)",
                    (migration.version, migration.name, migration.checksum),
                )
            report = migrate(empty_database)
            assert (report.before, report.after) == (stop, reference.after)
            assert conn.execute(functions).fetchone() == wanted


def test_two_at_once_are_safe(empty_database: str) -> None:
    reports = []
    errors = []

    def run() -> None:
        try:
            reports.append(migrate(empty_database))
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert sorted(len(r.applied) for r in reports) == [0, 0, 0, len(migrations()) + len(code())]


def test_a_database_newer_than_the_program_is_refused_and_untouched(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute(
            "INSERT INTO outbox.schema_version (version, name, checksum) VALUES (9999, 'x', 'x')"
        )
    before = fingerprint(database)
    with pytest.raises(SchemaTooNew, match=r"9999.*newer outbox-relay"):
        migrate(database)
    assert fingerprint(database) == before
    with connect(database, "test") as own, pytest.raises(SchemaTooNew):
        require_current(own)


@pytest.mark.parametrize(("serves", "works"), [(0, True), (KNOWN, True), (KNOWN + 1, False)])
def test_a_newer_schema_is_worked_with_as_long_as_it_serves_the_program(
    database: str, cli: Cli, serves: int, works: bool
) -> None:
    """An old pod restarts in the middle of a rollout, or the rollout is taken back."""
    with psycopg.connect(database, autocommit=True) as conn:
        for version, least in ((KNOWN + 1, serves), (KNOWN + 2, 0)):
            conn.execute(
                "INSERT INTO outbox.schema_version (version, name, checksum, serves)"
                " VALUES (%s, 'x', 'x', %s)",
                (version, least),
            )
    before = fingerprint(database)
    with connect(database, "test") as own:
        if works:
            require_current(own)
            assert f"left alone: the schema has version {KNOWN + 2}" in cli("migrate")
        else:
            with pytest.raises(SchemaTooNew, match="newer outbox-relay"):
                require_current(own)
            with pytest.raises(SchemaTooNew, match="nothing was changed"):
                migrate(database)
    assert fingerprint(database) == before


def test_a_migration_declares_which_programs_it_serves() -> None:
    assert Migration(9, "x", "SELECT 1;").serves == 0
    assert Migration(9, "x", "-- Why.\n-- serves programs from version 8 on\nSELECT 1;").serves == 8


def test_a_relay_on_a_database_without_a_schema_shows_what_to_run(empty_database: str) -> None:
    with connect(empty_database, "test") as conn, pytest.raises(SchemaMissing, match="migrate"):
        require_current(conn)


def test_a_database_that_is_behind_is_recognised(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute("DELETE FROM outbox.schema_version WHERE version = %s", (KNOWN,))
    with connect(database, "test") as own, pytest.raises(StoreError, match="migrate"):
        require_current(own)


@pytest.mark.parametrize(
    ("dsn", "error", "says"),
    [
        ("nonsense", SettingsError, "malformed"),
        ("host=127.0.0.1 port=1 user=x password=hunter2 dbname=y", StoreUnavailable, "PostgreSQL"),
    ],
)
def test_a_bad_address_is_a_clear_error_without_the_password(
    dsn: str, error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says) as caught:
        migrate(dsn)
    assert "hunter2" not in str(caught.value)


def test_without_the_right_to_make_roles_the_missing_ones_are_named() -> None:
    with scratch() as folder, Postgres(folder / "pg") as server:
        dsn = server.create_database("own")
        with psycopg.connect(dsn, autocommit=True) as conn:
            conn.execute("CREATE ROLE owner LOGIN")
            conn.execute("ALTER DATABASE own OWNER TO owner")
        with pytest.raises(StoreError, match="outbox_producer"):
            migrate(server.dsn("own", user="owner"))
        with psycopg.connect(dsn, autocommit=True) as conn:
            for role in ("outbox_producer", "outbox_relay", "outbox_reader"):
                conn.execute(f"CREATE ROLE {role}")
        assert migrate(server.dsn("own", user="owner")).after == KNOWN


EMIT = "SELECT outbox.emit('order.created', 'x')"
NEEDS_A_LOCK = "ALTER TABLE outbox.relay ADD COLUMN next integer"


def test_a_migration_does_not_hold_up_producers(
    database: str,
    program_with: Callable[[str], list[Migration]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One producer's transaction stays open, and a migration needs the tables that it has used."""
    program_with(NEEDS_A_LOCK)
    with (
        psycopg.connect(database, application_name="nightly import") as slow,
        psycopg.connect(database, autocommit=True) as quick,
        ThreadPoolExecutor(1) as pool,
    ):
        slow.execute(EMIT)
        running = pool.submit(migrate, database)
        quick.execute("SET statement_timeout = '20s'")
        wait_until(
            lambda: quick.execute("SELECT 1 FROM pg_locks WHERE NOT granted").fetchone(),
            *(10, "the migration to wait for a lock"),
        )
        began = time.monotonic()
        quick.execute(EMIT)
        assert time.monotonic() - began < 3.5
        wait_until(lambda: caplog.messages, 10, "the warning")
        slow.commit()
        assert running.result(30).after == KNOWN + 1
    assert "2s" in caplog.messages[0]
    assert re.search(
        r"pid \d+ 'nightly import' of postgres, idle in transaction, open for \d+s, holds .*relay",
        caplog.messages[0],
    )
    assert "emit" not in caplog.messages[0]


def test_a_migration_that_gets_no_lock_gives_up_and_names_the_blockers(
    database: str, program_with: Callable[[str], list[Migration]]
) -> None:
    program_with(NEEDS_A_LOCK)
    with psycopg.connect(database, application_name="forgotten") as slow:
        slow.execute(EMIT)
        with pytest.raises(StoreBusy, match=r"'forgotten'.*outbox-relay migrate"):
            migrate(database, timedelta(seconds=1))
    assert migrate(database).before == KNOWN


def test_a_migration_waits_for_another_one_for_as_long_as_it_may(empty_database: str) -> None:
    with psycopg.connect(empty_database) as other:
        other.execute(LOCK)
        began = time.monotonic()
        with pytest.raises(StoreBusy, match="another `outbox-relay migrate`"):
            migrate(empty_database, LOCK_TIMEOUT + timedelta(seconds=0.5))
        assert time.monotonic() - began > LOCK_TIMEOUT.total_seconds()


def test_a_requirement_that_gets_no_lock_gives_up_before_producers_feel_it(database: str) -> None:
    with psycopg.connect(database) as slow, psycopg.connect(database, autocommit=True) as owner:
        slow.execute(EMIT)
        with pytest.raises(pg.LockNotAvailable, match="within 2 seconds") as caught:
            owner.execute("SELECT outbox.require('correlation_id')")
        assert "Call it again" in str(caught.value.diag.message_hint)
        slow.commit()
        owner.execute("SELECT outbox.require('correlation_id')")

"""Functions and triggers are applied again when their text changed, and by nobody who is older."""

import time
from typing import Any

import pytest
from psycopg import errors as pg

from fixtures.cli import Cli
from fixtures.outbox import Outbox
from outbox_core.errors import SchemaOutdated
from outbox_core.schema.files import KNOWN, code
from outbox_core.store.connection import connect
from outbox_core.store.lanes import LANES
from outbox_core.store.migrate import LOCK_TIMEOUT, migrate, require_current

pytestmark = pytest.mark.pg

OF_ANOTHER_BUILD = """
    UPDATE outbox.schema_code SET digest = 'other' WHERE part = '{part}';
    CREATE OR REPLACE FUNCTION outbox.bytes_per_claim() RETURNS integer
        LANGUAGE sql IMMUTABLE PARALLEL SAFE AS 'SELECT 1'
"""
BYTES = "SELECT outbox.bytes_per_claim()"


def other_build(outbox: Outbox, part: str = "functions") -> None:
    outbox.conn.execute(OF_ANOTHER_BUILD.format(part=part).encode())
    assert outbox.value(BYTES) == 1


def digests(outbox: Outbox) -> dict[str, Any]:
    return dict(outbox.conn.execute("SELECT part, digest FROM outbox.schema_code").fetchall())


def test_what_is_in_the_database_is_noted(outbox: Outbox) -> None:
    assert digests(outbox) == {part.name: part.digest for part in code()}


def test_functions_that_changed_are_applied_again(outbox: Outbox) -> None:
    other_build(outbox)
    report = migrate(outbox.dsn)
    assert (report.before, report.after, report.applied) == (KNOWN, KNOWN, ["functions"])
    assert outbox.value(BYTES) > 1
    assert digests(outbox) == {part.name: part.digest for part in code()}
    assert migrate(outbox.dsn).applied == []


def test_to_apply_functions_waits_for_no_producer(outbox: Outbox) -> None:
    other_build(outbox)
    with outbox.connect() as producer:
        producer.execute("SELECT outbox.emit('order.created', 'x')")
        began = time.monotonic()
        assert migrate(outbox.dsn).applied == ["functions"]
        assert time.monotonic() - began < LOCK_TIMEOUT.total_seconds()


def test_triggers_that_changed_are_applied_again_and_hold_for_all(outbox: Outbox) -> None:
    outbox.sql("UPDATE outbox.schema_code SET digest = 'other' WHERE part = 'triggers'")
    outbox.sql("DROP TRIGGER event_fans_out ON outbox.event")
    outbox.sql("ALTER TABLE outbox.audit ENABLE REPLICA TRIGGER audit_only_grows")
    assert migrate(outbox.dsn).applied == ["triggers"]
    enabled = outbox.sql(
        "SELECT DISTINCT tgenabled FROM pg_trigger WHERE NOT tgisinternal"
        " AND tgrelid IN ('outbox.event'::regclass, 'outbox.audit'::regclass)"
    )
    assert enabled == [("A",)]
    outbox.register()
    outbox.emit()
    assert outbox.states() == {"PENDING": 1}


def test_an_older_program_leaves_the_functions_of_a_newer_one(outbox: Outbox) -> None:
    """A pod of the old version restarts during a rollout, or after it was taken back."""
    other_build(outbox)
    outbox.sql(
        "INSERT INTO outbox.schema_version (version, name, checksum, serves)"
        " VALUES (%s, 'next', 'x', 0)",
        KNOWN + 1,
    )
    before = digests(outbox)
    assert migrate(outbox.dsn).applied == []
    assert (digests(outbox), outbox.value(BYTES)) == (before, 1)


def test_a_relay_starts_on_the_functions_of_another_build_and_check_warns(
    outbox: Outbox, cli: Cli
) -> None:
    other_build(outbox)
    with connect(outbox.dsn, "test") as conn:
        require_current(conn)
    assert f"warn  schema: version {KNOWN}, with functions of another build" in cli("check")
    migrate(outbox.dsn)
    assert f"ok    schema: version {KNOWN}" in cli("check")


def test_a_schema_from_before_the_first_release_is_refused_with_the_cure(
    outbox: Outbox, cli: Cli
) -> None:
    """Eight migrations that are one today; its numbers do not correspond to ours."""
    outbox.sql("UPDATE outbox.schema_version SET name = 'tables', checksum = 'x' WHERE version = 1")
    for version in range(2, 9):
        outbox.sql(
            "INSERT INTO outbox.schema_version (version, name, checksum, serves)"
            " VALUES (%s, 'x', 'x', 0)",
            version,
        )
    outbox.sql("DROP TABLE outbox.schema_code")
    with pytest.raises(SchemaOutdated, match=r"0001_baseline.*nothing was changed.*DROP SCHEMA"):
        migrate(outbox.dsn)
    assert outbox.value("SELECT max(version) FROM outbox.schema_version") == 8
    with connect(outbox.dsn, "test") as conn, pytest.raises(SchemaOutdated):
        require_current(conn)
    assert "fail  schema: made before the first release" in cli("check", code=1)


def test_the_functions_hold_together(outbox: Outbox) -> None:
    """They are applied unchecked, because they name each other in any order."""
    with outbox.connect() as conn:
        conn.execute("SET LOCAL check_function_bodies = on")
        for part in code():
            conn.execute(part.sql.encode())


def test_nobody_may_call_what_is_not_granted_to_them(outbox: Outbox) -> None:
    """Also of a function that was added later and is named nowhere."""
    outbox.sql("CREATE FUNCTION outbox.later() RETURNS integer LANGUAGE sql AS 'SELECT 1'")
    outbox.sql("UPDATE outbox.schema_code SET digest = 'other'")
    migrate(outbox.dsn)
    functions = (
        "SELECT count(*) FROM pg_proc p WHERE pronamespace = 'outbox'::regnamespace"
        " AND has_function_privilege(%s, p.oid, 'EXECUTE') AND proname <> ALL (%s)"
    )
    outbox.sql("CREATE ROLE passer_by")
    try:
        assert outbox.value(functions, "passer_by", []) == 0
    finally:
        outbox.sql("DROP ROLE passer_by")
    of_producers = ["emit", "first_twin", "derive_idempotency_key", "slot_of"]
    of_readers = ["trace", "causes", "effects", "lanes", "delivery_of"]
    assert outbox.value(functions, "outbox_producer", of_producers) == 0
    assert outbox.value(functions, "outbox_reader", of_readers) == 0
    for role, name, may in [
        ("outbox_relay", "later()", True),
        ("outbox_relay", "replay_take(text, text)", True),
        ("outbox_relay", "trace(text)", True),
        ("outbox_relay", "require(text, boolean)", False),
        ("outbox_relay", "event_arrives()", False),
        ("outbox_producer", "slot_of(text)", True),
        ("outbox_reader", "causes(uuid)", True),
    ]:
        granted = outbox.value(
            "SELECT has_function_privilege(%s, %s, 'EXECUTE')", role, f"outbox.{name}"
        )
        assert (role, name, granted) == (role, name, may)


def test_the_programs_know_how_many_lanes_there_are(outbox: Outbox) -> None:
    outbox.register("relay", ordering="Key")
    assert outbox.value("SELECT outbox.lanes()") == LANES
    assert outbox.value("SELECT count(*) FROM outbox.lane") == LANES
    with pytest.raises(pg.CheckViolation):
        outbox.sql("INSERT INTO outbox.lane (relay_id, lane) VALUES (99, %s)", LANES)

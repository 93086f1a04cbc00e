"""What a person must fix: it is reported, nothing is changed, and no second attempt is made."""

from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from dev.services import Postgres, scratch
from fixtures.outbox import Outbox
from fixtures.replays import ReplayProcess, StartReplay, deliveries, make_dead
from outbox_core.contract.replay import Exit
from outbox_core.store.migrate import migrate

pytestmark = [pytest.mark.pg, pytest.mark.timeout(300)]


def refused(replay: ReplayProcess, reason: str, says: str, code: Exit = Exit.FINAL) -> None:
    assert replay.wait(120) == code
    report = replay.final_report
    assert (report.stage, report.reason) == ("Failed", reason)
    assert says in report.message
    assert "Traceback" not in replay.log.read_text()
    assert not replay.happened("engine-started")
    assert replay.happened("failed")[0]["reason"] == reason


@pytest.mark.parametrize(
    ("settings", "reason", "says"),
    [
        ({"relay": "another"}, "RelayUnknown", "another"),
        ({"select": {"errorMatches": "time(out"}}, "SelectionInvalid", "parentheses"),
        ({"maxEvents": 99}, "TooManyEvents", "maxEvents"),
    ],
)
def test_nothing_is_changed_by_what_cannot_be_done(
    outbox: Outbox, start_replay: StartReplay, settings: dict[str, Any], reason: str, says: str
) -> None:
    make_dead(outbox, outbox.register(), 100)
    before = deliveries(outbox)
    refused(start_replay(outbox.dsn, master=None, **settings), reason, says)
    assert deliveries(outbox) == before
    assert outbox.value("SELECT count(*) FROM outbox.replay_chunk") == 0
    assert outbox.value("SELECT count(*) FROM outbox.replay WHERE stopped_at IS NULL") == 0
    for action, state in outbox.sql("SELECT action, after->>'state' FROM outbox.audit"):
        assert action == "replay-stop"
        assert state.startswith(f"0 replayed, 0 skipped: {reason}: ")


@pytest.mark.parametrize(
    ("breakage", "reason", "code"),
    [
        ("DROP SCHEMA outbox CASCADE", "SchemaMissing", Exit.FINAL),
        ("UPDATE outbox.schema_version SET version = -1", "SchemaOutdated", Exit.AGAIN),
    ],
)
def test_a_missing_or_outdated_schema_is_reported_with_the_cure(
    outbox: Outbox, start_replay: StartReplay, breakage: str, reason: str, code: Exit
) -> None:
    outbox.sql(breakage)
    refused(start_replay(outbox.dsn, master=None), reason, "outbox-relay migrate", code)


def test_a_user_without_rights_gets_the_role_that_it_needs_named(
    outbox: Outbox, postgres: Postgres, start_replay: StartReplay
) -> None:
    outbox.sql("DROP ROLE IF EXISTS nobody")
    outbox.sql("CREATE ROLE nobody LOGIN")
    outbox.register()
    dsn = postgres.dsn(outbox.value("SELECT current_database()"), "nobody")
    refused(start_replay(dsn, master=None), "PermissionDenied", "outbox_relay")
    outbox.sql("DROP ROLE nobody")


def test_a_wrong_password_and_a_missing_database_are_reported(
    tmp_path: Path, start_replay: StartReplay
) -> None:
    with scratch() as folder, Postgres(folder / "pg") as server:
        migrate(server.create_database("shop"))
        with psycopg.connect(server.dsn("shop"), autocommit=True) as conn:
            conn.execute("CREATE ROLE relay LOGIN PASSWORD 'right' IN ROLE outbox_relay")
        hba = server.data / "pg_hba.conf"
        hba.write_text("host all relay 127.0.0.1/32 scram-sha-256\n" + hba.read_text())
        server.restart()
        wrong = make_conninfo(server.dsn("shop", "relay"), password="wrong-one")
        replay = start_replay(wrong, master=None)
        refused(replay, "WrongPassword", "password authentication failed")
        assert "wrong-one" not in replay.log.read_text() + replay.termination_message
        refused(start_replay(server.dsn("stock"), master=None), "DatabaseMissing", "stock")


def test_invalid_settings_are_reported_field_by_field(start_replay: StartReplay) -> None:
    replay = start_replay("unused", rate={"eventsPerSecond": 0}, speed=3)
    assert replay.wait(120) == Exit.FINAL
    report = replay.final_report
    assert (report.stage, report.reason) == ("Failed", "SettingsInvalid")
    assert "rate.eventsPerSecond" in report.message
    assert "speed" in report.message


def test_a_missing_dsn_is_reported(start_replay: StartReplay) -> None:
    refused(start_replay("unused", store={"dsn": {"env": "NOT_SET"}}), "SettingsInvalid", "NOT_SET")

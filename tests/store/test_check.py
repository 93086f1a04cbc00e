"""`outbox-relay check`: what is right and wrong about a database, with the cure."""

import threading
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from psycopg.sql import SQL, Identifier

from dev.services import Kafka, PgBouncer, Postgres
from fixtures.cli import Cli
from fixtures.outbox import Outbox
from outbox_core.store.doctor.diagnosis import diagnose
from outbox_core.store.doctor.facts import gather

pytestmark = pytest.mark.pg


def levels(document: Any) -> dict[str, str]:
    """The worst level per check."""
    found: dict[str, str] = {}
    for finding in document["findings"]:
        worst = max(found.get(finding["check"], "ok"), finding["level"], key="ok warn fail".find)
        found[finding["check"]] = worst
    return found


def texts(document: Any, check: str) -> str:
    return " ".join(
        f["text"] + " " + f["cure"] for f in document["findings"] if f["check"] == check
    )


def config(tmp_path: Path, bootstrap: str = "127.0.0.1:1", more: str = "") -> Path:
    file = tmp_path / "relay.yaml"
    file.write_text(
        f"name: relay\npublisher: {{kafka: {{bootstrapServers: '{bootstrap}'}}}}\n{more}"
    )
    return file


def test_a_healthy_database_passes(outbox: Outbox, cli: Cli) -> None:
    document = cli.json("check")
    assert document["ok"]
    assert "fail" not in levels(document).values()
    assert {"database", "server", "schema", "grants", "triggers"} <= levels(document).keys()
    assert "ok    schema: version" in cli("check")


def test_without_a_schema_the_cure_is_migrate(
    cli: Cli, empty_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTBOX_DSN", empty_database)
    document = cli.json("check", code=1)
    assert levels(document)["schema"] == "fail"
    assert "outbox-relay migrate" in texts(document, "schema")


@pytest.mark.parametrize("version", [-1, 1])
def test_another_schema_version_fails(outbox: Outbox, cli: Cli, version: int) -> None:
    if version > 0:
        outbox.sql(
            "INSERT INTO outbox.schema_version (version, name, checksum) VALUES (999, '', '')"
        )
    else:
        outbox.sql(
            "DELETE FROM outbox.schema_version WHERE version ="
            " (SELECT max(version) FROM outbox.schema_version)"
        )
    assert levels(cli.json("check", code=1))["schema"] == "fail"


def test_a_server_that_does_not_answer_fails(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTBOX_DSN", "postgresql://u:hunter2@127.0.0.1:1/x")
    out = cli("check", code=1)
    assert out.startswith("fail  database:")
    assert "hunter2" not in out


@pytest.mark.parametrize(
    ("roles", "verdict"), [("outbox_relay", "ok"), ("outbox_reader", "fail"), ("", "fail")]
)
def test_missing_grants_are_named(
    outbox: Outbox,
    cli: Cli,
    postgres: Postgres,
    monkeypatch: pytest.MonkeyPatch,
    roles: str,
    verdict: str,
) -> None:
    name = f"user_{uuid4().hex[:8]}"
    outbox.sql(f"CREATE ROLE {name} LOGIN" + (f" IN ROLE {roles}" if roles else ""))
    dsn = postgres.dsn(outbox.value("SELECT current_database()"), name)
    monkeypatch.setenv("OUTBOX_DSN", dsn)
    document = cli.json("check", code=0 if verdict == "ok" else 1)
    assert levels(document)["grants"] == verdict
    if verdict == "fail":
        assert f'GRANT outbox_relay TO "{name}"' in texts(document, "grants")
    assert "cannot be seen" in texts(document, "old transactions")  # pg_read_all_stats is extra
    outbox.sql(f"DROP ROLE {name}")


def test_a_disabled_trigger_fails(outbox: Outbox, cli: Cli) -> None:
    outbox.sql("ALTER TABLE outbox.event DISABLE TRIGGER event_fans_out")
    document = cli.json("check", code=1)
    assert levels(document)["triggers"] == "fail"
    assert "event_fans_out" in texts(document, "triggers")
    outbox.sql("DROP TRIGGER event_fans_out ON outbox.event")
    assert "missing: event_fans_out" in texts(cli.json("check", code=1), "triggers")


def test_a_read_only_database_fails(outbox: Outbox, cli: Cli) -> None:
    database = Identifier(outbox.value("SELECT current_database()"))
    outbox.conn.execute(
        SQL("ALTER DATABASE {} SET default_transaction_read_only = on").format(database)
    )
    assert levels(cli.json("check", code=1))["writable"] == "fail"


def test_careless_settings_are_warned_of(outbox: Outbox, cli: Cli) -> None:
    database = Identifier(outbox.value("SELECT current_database()"))
    outbox.conn.execute(SQL("ALTER DATABASE {} SET synchronous_commit = off").format(database))
    document = cli.json("check")
    assert levels(document)["durability"] == "warn"


@pytest.mark.usefixtures("impatient")
def test_a_pooler_is_noticed_and_stands_in_the_way_of_notify_only(
    outbox: Outbox, cli: Cli, pgbouncer: PgBouncer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dsn = pgbouncer.dsn(outbox.value("SELECT current_database()"))
    monkeypatch.setenv("OUTBOX_DSN", dsn)
    document = cli.json("check")
    assert "PgBouncer" in texts(document, "pooler")
    with_notify = config(tmp_path, more="polling: {notify: true}\n")
    document = cli.json("check", "--config", with_notify, code=1)
    assert levels(document)["pooler"] == "fail"
    cli("list", "--dsn", dsn)


def test_old_transactions_of_every_kind_are_found(outbox: Outbox) -> None:
    with outbox.connect() as session, outbox.connect() as preparer:
        session.execute("SELECT pg_current_xact_id()")
        preparer.execute("SELECT pg_current_xact_id()")
        preparer.execute("PREPARE TRANSACTION 'forgotten'")
        try:
            facts = gather(outbox.conn)
        finally:
            with outbox.connect(autocommit=True) as conn:
                conn.execute("ROLLBACK PREPARED 'forgotten'")
    held = {h.what: h for h in facts.holders}
    assert held["session"].state == "idle in transaction"
    assert held["prepared transaction"].name == "forgotten"
    aged = [h._replace(seconds=3600.0) for h in facts.holders]
    facts.holders[:] = aged
    warnings = [f for f in diagnose(facts, None) if f.check == "old transactions"]
    assert {f.level for f in warnings} == {"warn"}
    assert any("pg_terminate_backend" in f.cure for f in warnings)
    assert any("ROLLBACK PREPARED 'forgotten'" in f.cure for f in warnings)


def test_events_that_no_relay_wants_are_warned_of(outbox: Outbox, cli: Cli) -> None:
    outbox.emit("x")
    assert levels(cli.json("check"))["subscriptions"] == "warn"


def test_check_waits_until_it_passes(outbox: Outbox, cli: Cli) -> None:
    outbox.sql("ALTER TABLE outbox.event DISABLE TRIGGER event_arrives")
    repair = threading.Timer(
        0.3, outbox.sql, ["ALTER TABLE outbox.event ENABLE ALWAYS TRIGGER event_arrives"]
    )
    repair.start()
    cli("check", "--wait", "20s")
    repair.join()


@pytest.mark.usefixtures("impatient")
def test_a_broker_that_does_not_answer_fails(outbox: Outbox, cli: Cli, tmp_path: Path) -> None:
    document = cli.json("check", "--config", config(tmp_path), code=1)
    assert levels(document)["kafka"] == "fail"
    assert levels(document)["schema"] == "ok"


@pytest.mark.kafka
def test_the_topics_of_the_events_that_there_are_are_looked_at(
    outbox: Outbox, cli: Cli, kafka: Kafka, topic: str, tmp_path: Path
) -> None:
    outbox.emit(topic)
    subscription = f"subscription: {{eventTypes: ['{topic}', 'gone.v1']}}\n"
    file = config(tmp_path, kafka.bootstrap, subscription)
    document = cli.json("check", "--config", file, code=1)  # this broker creates no topics
    found = texts(document, "kafka")
    assert f"topic {topic}:" in found
    assert "topic gone.v1 does not exist" in found

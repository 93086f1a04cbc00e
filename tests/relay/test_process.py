"""A relay process as its users see it: its port, its log, its exit; behind a pooler; woken up."""

import time
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from dev.services import PgBouncer, Postgres, scratch, wait_until
from fixtures.outbox import Outbox
from fixtures.relays import RelayProcess, StartRelay
from fixtures.topics import Consume
from outbox_core.store.migrate import migrate

pytestmark = [pytest.mark.pg, pytest.mark.kafka]


def published(outbox: Outbox, count: int, timeout: float = 40) -> None:
    wait_until(lambda: outbox.states().get("PUBLISHED") == count, timeout, f"{count} published")


@pytest.mark.parametrize("ordering", ["None", "Key"])
def test_it_works_through_pgbouncer_in_transaction_mode(
    outbox: Outbox,
    pgbouncer: PgBouncer,
    topic: str,
    start_relay: StartRelay,
    consume: Consume,
    ordering: str,
) -> None:
    pooled = pgbouncer.dsn(outbox.value("SELECT current_database()"))
    pods = [
        start_relay(pooled, f"pod-{n}", ordering=ordering, kafka={"topic": topic}, batchSize=50)
        for n in range(2)
    ]
    for pod in pods:
        wait_until(lambda pod=pod: pod.happened("started"), 30, "started")  # type: ignore[misc]
    for i in range(300):
        outbox.emit(ordering_key=f"k{i % 7}")
    published(outbox, 300)
    assert all(pod.stop() == 0 for pod in pods)
    assert len(consume(topic, 300)) == 300
    assert not any(pod.happened("defect") for pod in pods)


def test_lc_22_em_50_several_processes_share_the_work_under_their_pods_names(
    outbox: Outbox, topic: str, start_relay: StartRelay, consume: Consume
) -> None:
    outbox.register()
    outbox.sql(
        "INSERT INTO outbox.event (event_type, payload) SELECT 'a.b', 'x'"
        " FROM generate_series(1, 60000)"
    )
    pods = [start_relay(outbox.dsn, f"pod-{n}", kafka={"topic": topic}) for n in range(4)]
    seen: set[str] = set()

    def done() -> bool:
        rows = outbox.sql(
            "SELECT DISTINCT claimed_by FROM outbox.deliveries WHERE state = 'CLAIMED'"
        )
        seen.update(name for (name,) in rows)
        return outbox.states() == {"PUBLISHED": 60000}

    wait_until(done, 60, "all published")
    assert seen
    assert seen <= {pod.pod for pod in pods}
    messages = consume(topic, 60000)
    assert len(messages) == 60000


STORE_CALLS = 'outbox_stage_seconds_count{stage="store"}'


def samples_of(relay: RelayProcess) -> dict[str, float]:
    """Its metrics, by name and labels."""
    lines = [line for line in relay.get("/metrics")[1].splitlines() if line[0] != "#"]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def test_oo_62_oo_46_the_port_shows_health_status_and_metrics(
    outbox: Outbox, topic: str, start_relay: StartRelay
) -> None:
    relay = start_relay(outbox.dsn, "pod-7", kafka={"topic": topic})
    wait_until(lambda: relay.get("/readyz")[0] == 200, 30, "ready")
    assert relay.get("/healthz") == (200, "alive\n")
    outbox.emit()
    outbox.emit(headers={"a": "x" * 2_000_000})  # too large: dead
    outbox.emit(available_at=outbox.value("SELECT now() + interval '1 h'"))
    wait_until(lambda: outbox.states() == {"PUBLISHED": 1, "DEAD": 1, "PENDING": 1}, 30, "settled")

    def counted() -> tuple[int, int]:
        backlog = relay.status()["backlog"]
        return backlog["pending"], backlog["dead"]

    wait_until(lambda: counted() == (1, 1), 20, "a report of it")
    report = relay.status()
    assert report["relay"] == "relay"
    assert report["claimedBy"] == "pod-7"
    assert report["ready"] is True
    assert report["breaker"] == "closed"
    assert report["backlog"]["oldestPendingSeconds"] == 0  # it is not due
    assert report["topErrors"][0]["code"]
    assert report["version"]
    samples = samples_of(relay)
    assert samples["outbox_published_total"] == 1
    assert samples["outbox_dead_total"] == 1
    assert samples['outbox_failed_total{error_class="event"}'] == 1
    assert samples['outbox_backlog{state="pending"}'] == 1
    assert samples['outbox_backlog{state="dead"}'] == 1
    assert samples["outbox_commit_to_ack_seconds_count"] == 1
    assert samples["outbox_ready"] == 1
    names = {name.partition("{")[0] for name in samples}
    for family in (
        "outbox_retried_total", "outbox_reaped_total", "outbox_lost_claims_total",
        "outbox_batch_size_count", "outbox_stage_seconds_count", "outbox_oldest_pending_seconds",
        "outbox_breaker_open",
    ):  # fmt: skip
        assert family in names
    assert relay.get("/nowhere")[0] == 404


def test_oo_63_em_20_a_failure_is_in_the_log_with_id_and_trace_and_without_payload_or_secret(
    outbox: Outbox, topic: str, start_relay: StartRelay
) -> None:
    relay = start_relay(
        make_conninfo(outbox.dsn, password="hunter2"),
        kafka={"topic": topic, "maxMessageBytes": 2000},
    )
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    event_id = outbox.emit(payload=b"TOPSECRET" * 1000, metadata={"traceparent": trace})
    dead = wait_until(lambda: relay.happened("dead"), 30, "the failure is logged")
    assert dead[0]["event_ids"] == [str(event_id)]
    assert dead[0]["traceparents"] == [trace]
    assert dead[0]["error_class"] == "event"
    log = relay.log.read_text()
    assert "TOPSECRET" not in log
    assert "hunter2" not in log
    # The line shows the verdict; it is recorded with the next claim.
    wait_until(
        lambda: outbox.event(dead[0]["event_ids"][0])["state"] == "DEAD", 10, "it is recorded"
    )


def test_oo_02_a_notification_wakes_an_idle_relay(
    outbox: Outbox, topic: str, start_relay: StartRelay
) -> None:
    relay = start_relay(
        outbox.dsn,
        kafka={"topic": topic},
        workers=1,
        polling={"notify": True, "shortest": "50s", "longest": "60s"},
    )
    wait_until(lambda: relay.get("/readyz")[0] == 200, 30, "ready")
    wait_until(
        lambda: outbox.value("SELECT count(*) FROM pg_stat_activity WHERE query = 'LISTEN outbox'"),
        20,
        "it listens",
    )
    # The first claim was empty; the next would come in 50 s.
    wait_until(lambda: samples_of(relay)[STORE_CALLS] > 0, 20, "its first claim")
    outbox.emit()
    published(outbox, 1, timeout=10)


def test_oo_30_a_retry_keeps_its_time_over_a_restart(
    outbox: Outbox, topic: str, start_relay: StartRelay
) -> None:
    retry: dict[str, Any] = {"baseDelay": "1h", "maxDelay": "1h", "jitter": 0}
    first = start_relay(outbox.dsn, "one", kafka={"topic": "no-such-topic"}, retry=retry)
    event_id = outbox.emit()
    wait_until(lambda: outbox.event(event_id)["last_error"], 60, "it failed")
    due = outbox.event(event_id)["available_at"]
    assert first.stop() == 0
    second = start_relay(outbox.dsn, "two", kafka={"topic": topic}, retry=retry)
    other = outbox.emit()
    wait_until(lambda: outbox.event(other)["state"] == "PUBLISHED", 30, "the second works")
    assert outbox.event(event_id)["available_at"] == due
    assert outbox.event(event_id)["state"] == "PENDING"
    assert second.stop() == 0


@pytest.mark.parametrize(
    ("breakage", "says", "reason"),
    [
        ("DROP SCHEMA outbox CASCADE", "outbox-relay migrate", "SchemaMissing"),
        (
            "UPDATE outbox.schema_version SET version = -1",
            "outbox-relay migrate",
            "SchemaOutdated",
        ),
        (
            "INSERT INTO outbox.schema_version (version, name, checksum) VALUES (999, 'x', 'x')",
            "999",
            "SchemaTooNew",
        ),
    ],
)
def test_what_only_a_person_can_fix_ends_the_process_with_a_message(
    outbox: Outbox, start_relay: StartRelay, breakage: str, says: str, reason: str
) -> None:
    outbox.sql(breakage)
    relay = start_relay(outbox.dsn, kafka={"topic": "t"})
    assert relay.wait(30) == 1
    log = relay.log.read_text()
    assert says in log
    assert "Traceback" not in log
    words = relay.failure
    assert words is not None
    assert (words.reason, says in words.message) == (reason, True)


def test_a_user_without_rights_ends_it_with_a_message(
    outbox: Outbox, postgres: Postgres, start_relay: StartRelay
) -> None:
    outbox.sql("DROP ROLE IF EXISTS nobody")
    outbox.sql("CREATE ROLE nobody LOGIN")
    relay = start_relay(
        postgres.dsn(outbox.value("SELECT current_database()"), "nobody"), kafka={"topic": "t"}
    )
    assert relay.wait(30) == 1
    outbox.sql("DROP ROLE nobody")
    words = relay.failure
    assert words is not None
    assert (words.reason, "outbox_relay" in words.message) == ("PermissionDenied", True)


def test_a_wrong_password_is_reported_and_a_changed_secret_needs_no_restart(
    tmp_path: Path, topic: str, start_relay: StartRelay
) -> None:
    with scratch() as folder, Postgres(folder / "pg") as server:
        migrate(server.create_database("shop"))
        with psycopg.connect(server.dsn("shop"), autocommit=True) as conn:
            conn.execute("CREATE ROLE relay LOGIN PASSWORD 'right' IN ROLE outbox_relay")
        hba = server.data / "pg_hba.conf"
        hba.write_text("host all relay 127.0.0.1/32 scram-sha-256\n" + hba.read_text())
        server.restart()
        secret = tmp_path / "dsn"
        secret.write_text(make_conninfo(server.dsn("shop", "relay"), password="wrong"))
        relay = start_relay("unused", kafka={"topic": topic}, store={"dsn": {"file": str(secret)}})
        wait_until(lambda: relay.status()["reasons"].get("store"), 30, "it is reported")
        report = relay.status()
        assert report["reasons"] == {
            "start": "Starting",
            "status": "WrongPassword",
            "store": "WrongPassword",
        }
        assert relay.get("/readyz")[0] == 503
        assert "password authentication failed" in relay.get("/readyz")[1]
        secret.write_text(make_conninfo(server.dsn("shop", "relay"), password="right"))
        wait_until(lambda: relay.get("/readyz")[0] == 200, 30, "it is let in")
        # While it works, a secret may be unreadable for a moment: that is no reason to end.
        secret.write_text("nonsense")
        server.restart()
        wait_until(lambda: relay.get("/readyz")[0] == 503, 30, "it cannot connect")
        secret.write_text(make_conninfo(server.dsn("shop", "relay"), password="right"))
        wait_until(lambda: relay.get("/readyz")[0] == 200, 40, "it is back")
        assert "right" not in relay.log.read_text()
        assert relay.stop() == 0
        assert relay.failure is None


def test_em_07_the_topic_template_changes_and_the_event_does_not(
    outbox: Outbox, make_topic: Any, start_relay: StartRelay, consume: Consume
) -> None:
    old, new = make_topic(), make_topic()
    relay = start_relay(outbox.dsn, "one", kafka={"topic": old})
    outbox.emit("order.created", b"1")
    published(outbox, 1)
    relay.stop()
    start_relay(outbox.dsn, "two", kafka={"topic": new})
    outbox.emit("order.created", b"2")
    published(outbox, 2)
    assert [m.value for m in consume(old, 1)] == [b"1"]
    assert [m.value for m in consume(new, 1)] == [b"2"]
    assert {e["event_type"] for e in outbox.events()} == {"order.created"}


def test_em_22_em_21_metadata_does_not_leave_the_house(
    outbox: Outbox, topic: str, start_relay: StartRelay, consume: Consume
) -> None:
    start_relay(outbox.dsn, kafka={"topic": topic})
    outbox.emit(metadata={"internal": "SECRET-NOTE", "traceparent": "00-aa-bb-01"})
    (message,) = consume(topic, 1)
    assert "SECRET-NOTE" not in repr(message)
    assert dict(message.headers)["traceparent"] == b"00-aa-bb-01"


def test_oo_01_what_is_committed_is_soon_published(
    outbox: Outbox, topic: str, start_relay: StartRelay, consume: Consume
) -> None:
    relay = start_relay(outbox.dsn, kafka={"topic": topic})
    wait_until(lambda: relay.get("/readyz")[0] == 200, 30, "ready")
    outbox.emit()
    published(outbox, 1)  # connected, and awake
    for _ in range(50):
        outbox.emit()
        time.sleep(0.02)
    published(outbox, 51)
    late = outbox.value(
        "SELECT count(*) FROM outbox.events WHERE published_at - created_at > interval '1 s'"
        " AND seq > 1"
    )
    assert late <= 2  # a test machine may hiccup; a relay that polls by the second has 50

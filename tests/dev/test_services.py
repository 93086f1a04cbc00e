"""The servers that all other tests stand on do what those tests take for granted."""

import os
import subprocess
import sys
import time
from pathlib import Path

import psycopg
import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient

from dev.services import Kafka, PgBouncer, Postgres, ServerError, process, scratch, wait_until
from dev.services.process import accepts, is_alive
from fixtures.topics import Consume, MakeTopic


@pytest.mark.pg
def test_postgres_keeps_what_was_committed_when_it_is_killed(
    postgres: Postgres, empty_database: str
) -> None:
    with psycopg.connect(empty_database) as conn:
        conn.execute("CREATE TABLE kept AS SELECT 42 AS answer")
        backend = conn.info.backend_pid
        conn.commit()
        postmaster = postgres.pid

        postgres.kill()
        assert not is_alive(postmaster)
        assert not is_alive(backend)
        with pytest.raises(psycopg.OperationalError):
            conn.execute("SELECT 1")

    postgres.start()
    with psycopg.connect(empty_database) as conn:
        assert conn.execute("SELECT answer FROM kept").fetchone() == (42,)


@pytest.mark.pg
def test_postgres_is_durable(postgres: Postgres) -> None:
    with psycopg.connect(postgres.dsn()) as conn:
        for setting in ("fsync", "synchronous_commit", "full_page_writes"):
            assert conn.execute("SELECT current_setting(%s)", (setting,)).fetchone() == ("on",)


@pytest.mark.pg
def test_pgbouncer_passes_queries_and_shares_server_connections(
    pgbouncer: PgBouncer, empty_database: str
) -> None:
    through = pgbouncer.dsn(empty_database.rpartition("/")[2])
    pid = "SELECT pg_backend_pid()"
    with (
        psycopg.connect(through, autocommit=True) as one,
        psycopg.connect(through, autocommit=True) as two,
    ):
        assert one.execute(pid).fetchone() == two.execute(pid).fetchone()


@pytest.mark.kafka
def test_kafka_keeps_messages_and_port_when_it_is_stopped(
    kafka: Kafka, topic: str, consume: Consume
) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "acks": "all"})
    headers: list[tuple[str, str | bytes | None]] = [("a", b"1"), ("a", b"2"), ("none", None)]
    producer.produce(topic, key=b"k", value=b"v", headers=headers)
    assert producer.flush(10) == 0
    before = kafka.bootstrap

    kafka.restart()

    assert kafka.bootstrap == before
    (message,) = consume(topic, n=1)
    assert (message.key, message.value, message.headers) == (b"k", b"v", headers)
    assert abs(message.timestamp / 1000 - time.time()) < 60


@pytest.mark.kafka
def test_a_topic_has_the_partitions_and_settings_asked_for(
    make_topic: MakeTopic, consume: Consume, kafka_admin: AdminClient
) -> None:
    topic = make_topic(partitions=2, config={"max.message.bytes": "1000"})
    assert len(kafka_admin.list_topics(topic, timeout=10).topics[topic].partitions) == 2
    assert consume(topic) == []


@pytest.mark.kafka
def test_the_secure_listener_wants_the_password(kafka: Kafka) -> None:
    secure = kafka.secure
    assert secure
    config: dict[str, str | int | float | bool] = {
        "bootstrap.servers": secure.bootstrap,
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(secure.ca),
        "sasl.mechanism": "PLAIN",
        "sasl.username": secure.username,
        "log_level": 0,
    }
    good = AdminClient({**config, "sasl.password": secure.password})
    assert list(good.list_topics(timeout=10).brokers) == [1]
    bad = AdminClient({**config, "sasl.password": "wrong"})
    with pytest.raises(KafkaException, match=r"_TRANSPORT|_AUTHENTICATION"):
        bad.list_topics(timeout=2)


@pytest.mark.pg
def test_a_server_that_does_not_come_up_says_why() -> None:
    with scratch() as folder:
        broken = Postgres(folder / "postgres", {"shared_buffers": "a lot"})
        with pytest.raises(ServerError, match='invalid value for parameter "shared_buffers"'):
            broken.start()
        assert not broken.running


@pytest.mark.pg
def test_servers_leave_nothing_running_when_their_owner_stops_them() -> None:
    with scratch() as folder, Postgres(folder / "postgres") as server:
        pid = server.pid
    assert not is_alive(pid)
    assert not accepts(server.port)
    server.stop()  # once more does no harm


@pytest.mark.pg
def test_servers_leave_nothing_running_when_their_owner_is_killed() -> None:
    program = """
import os, signal, sys
from pathlib import Path
from dev.services import PgBouncer, Postgres
postgres = Postgres(Path(sys.argv[1]) / "postgres")
postgres.start()
pgbouncer = PgBouncer(Path(sys.argv[1]) / "pgbouncer", postgres)
pgbouncer.start()
print(postgres.pid, pgbouncer.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    with scratch() as folder:
        owner = subprocess.run(
            [sys.executable, "-c", program, folder], stdout=subprocess.PIPE, text=True
        )
        pids = [int(word) for word in owner.stdout.split()]
        assert len(pids) == 2
        wait_until(lambda: not any(map(is_alive, pids)), 10, f"end of the orphans {pids}")


def test_memory_is_used_if_there_is_plenty_and_what_killed_owners_left_is_freed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    left, ours = (tmp_path / f"outbox-{pid}-x" for pid in (gone.pid, os.getpid()))
    left.mkdir()
    ours.mkdir()
    monkeypatch.setattr(process, "MEMORY", tmp_path)
    with scratch(in_memory=True) as folder:
        assert (folder.parent == tmp_path) == (process._free_memory() > process.PLENTY)
    monkeypatch.setattr(process, "PLENTY", 0)
    with scratch(in_memory=True) as folder:
        assert set(tmp_path.iterdir()) == {folder, ours}
    monkeypatch.setattr(process, "MEMORY", tmp_path / "not there")
    with scratch(in_memory=True) as folder:
        assert folder.is_dir()

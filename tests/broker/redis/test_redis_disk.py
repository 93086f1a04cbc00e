"""What `wait.aof` waits for, on a server that has WAITAOF (Redis 7.2, Valkey)."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from broker.redis.servers import MakePublisher, entries, reader
from conformance.publisher_contract import SAMPLES, make_claim
from dev.services import wait_until
from dev.services.redis import Redis
from outbox_core.contract.publishers.redis import RedisWait
from outbox_core.model.attempt import Acked, ErrorClass, Outcome, Refused
from outbox_relay.publishers.redis.publisher import RedisPublisher

pytestmark = pytest.mark.redis

SOON = timedelta(seconds=1)


@pytest.fixture(scope="module")
def primary(server_folder: Path) -> Iterator[Redis]:
    with Redis(server_folder / "redis-with-waitaof", waits_for_disk=True) as server:
        yield server


@pytest.fixture
def configure(primary: Redis) -> Iterator[Callable[[str, str], None]]:
    """Changes a setting of the running server, for this test."""
    before: dict[str, str] = {}
    with reader(primary) as conn:

        def change(name: str, value: str) -> None:
            before.update(conn.config_get(name))
            conn.config_set(name, value)

        yield change
        for name, value in before.items():
            conn.config_set(name, value)


@pytest.fixture
def follow(primary: Redis) -> Iterator[Callable[..., Redis]]:
    started: list[Redis] = []

    def start(**settings: str) -> Redis:
        filled = {"replicaof": f"127.0.0.1 {primary.port}", **settings}
        folder = primary.folder / f"replica-{len(started)}"
        started.append(Redis(folder, filled, waits_for_disk=True))
        started[-1].start()
        with reader(primary) as conn:
            wait_until(lambda: conn.wait(1, 1000) == 1, 20, "it has its first copy, and answers")
        return started[-1]

    yield start
    for replica in started:
        replica.stop()
    with reader(primary) as conn:
        wait_until(lambda: conn.info("replication")["connected_slaves"] == 0, 20, "it is gone")


def publish(publisher: RedisPublisher) -> tuple[str, ErrorClass] | None:
    """Of three events; None if all are acknowledged."""
    outcomes = publisher.publish([make_claim() for _ in range(3)])
    assert len(set(map(type, outcomes))) == 1
    return refusal(outcomes[0])


def refusal(outcome: Outcome) -> tuple[str, ErrorClass] | None:
    if isinstance(outcome, Acked):
        return None
    assert isinstance(outcome, Refused)
    return outcome.error.code, outcome.error.kind


def said(publisher: RedisPublisher, words: str) -> list[str]:
    return [r.level for r in publisher.check(SAMPLES) if words in r.text]


def test_an_event_is_acknowledged_when_the_disk_has_it(
    primary: Redis,
    stream: str,
    make_publisher: MakePublisher,
    configure: Callable[[str, str], None],
) -> None:
    configure("appendfsync", "always")
    publisher = make_publisher(stream, url=primary.url, wait=RedisWait(aof=True, timeout=SOON))
    assert publish(publisher) is None
    with reader(primary) as conn:
        assert conn.info("commandstats")["cmdstat_waitaof"]["calls"] > 0
    assert said(publisher, "what it acknowledges is on its disk") == ["ok"]
    primary.kill()
    primary.start()
    assert len(entries(primary, stream)) == 3


def test_a_disk_that_nobody_syncs_leaves_events_in_doubt_and_fails_the_check(
    primary: Redis,
    stream: str,
    make_publisher: MakePublisher,
    configure: Callable[[str, str], None],
) -> None:
    configure("appendfsync", "no")
    publisher = make_publisher(stream, url=primary.url, wait=RedisWait(aof=True, timeout=SOON))
    assert publish(publisher) == ("NOT_COPIED", ErrorClass.OUTAGE)
    assert said(publisher, "nothing is ever acknowledged") == ["fail"]


def test_without_an_append_only_file_nothing_is_sent(
    primary: Redis,
    stream: str,
    make_publisher: MakePublisher,
    configure: Callable[[str, str], None],
) -> None:
    configure("appendonly", "no")
    publisher = make_publisher(stream, url=primary.url, wait=RedisWait(aof=True))
    assert publish(publisher) == ("NO_AOF", ErrorClass.OUTAGE)
    assert entries(primary, stream) == []
    assert said(publisher, "appendonly is disabled") == ["fail"]


def test_replicas_must_have_it_on_their_disks_too(
    primary: Redis, stream: str, make_publisher: MakePublisher, follow: Callable[..., Redis]
) -> None:
    wait = RedisWait(aof=True, replicas=1, timeout=timedelta(seconds=5))
    publisher = make_publisher(stream, url=primary.url, wait=wait)
    replica = follow()
    assert publish(publisher) is None
    replica.kill()
    assert publish(publisher) in (
        ("NOT_COPIED", ErrorClass.OUTAGE),
        ("NOREPLICAS", ErrorClass.OUTAGE),
    )


def test_a_replica_that_has_it_in_memory_alone_is_not_enough(
    primary: Redis, stream: str, make_publisher: MakePublisher, follow: Callable[..., Redis]
) -> None:
    follow(appendonly="no")
    copied = make_publisher(stream, url=primary.url, wait=RedisWait(replicas=1, timeout=SOON))
    assert publish(copied) is None
    wait = RedisWait(aof=True, replicas=1, timeout=SOON)
    assert publish(make_publisher(stream, url=primary.url, wait=wait)) == (
        "NOT_COPIED",
        ErrorClass.OUTAGE,
    )


def test_the_check_warns_where_the_server_does_not_wait_for_its_disk(
    primary: Redis, stream: str, make_publisher: MakePublisher
) -> None:
    publisher = make_publisher(stream, url=primary.url, wait=RedisWait(aof=True))
    with reader(primary) as conn:
        info = conn.info("server")
    early = info.get("server_name") == "valkey" or info["redis_version"].startswith("7.4.")
    assert said(publisher, "does not wait for its disk") == (["warn"] if early else [])
    assert said(publisher, "what it acknowledges is on its disk") == ([] if early else ["ok"])

"""What Redis refuses, and whose fault that is: each class by the server that produces it."""

import time
import uuid
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from broker.redis.servers import MakePublisher, entries, reader
from conformance.publisher_contract import SAMPLES, make_claim
from dev.services import wait_until
from dev.services.process import free_port
from dev.services.redis import Redis
from fixtures.certificates import Authority
from outbox_core.contract.publishers.common import Tls
from outbox_core.contract.publishers.redis import RedisWait
from outbox_core.contract.values import SecretRef
from outbox_core.errors import BrokerRefused, PublisherError
from outbox_core.model.attempt import Acked, ErrorClass, Outcome, Refused, Unsent
from outbox_relay.publishers.redis.copies import Copies
from outbox_relay.publishers.redis.errors import ReplyError, error_of
from outbox_relay.publishers.redis.publisher import RedisPublisher
from outbox_relay.publishers.redis.transactions import EXEC, Transaction
from outbox_relay.publishers.redis.wire import Wire, pack

pytestmark = pytest.mark.redis


def refusal(outcome: Outcome) -> tuple[str, ErrorClass]:
    assert isinstance(outcome, Refused), outcome
    return outcome.error.code, outcome.error.kind


def publish_one(publisher: RedisPublisher) -> Outcome:
    (outcome,) = publisher.publish([make_claim()])
    return outcome


@pytest.fixture
def configured(redis: Redis) -> Iterator[dict[str, str]]:
    """Settings to change while it runs; as they were afterwards."""
    changed: dict[str, str] = {}
    yield changed
    with reader(redis) as conn:
        for name, before in changed.items():
            conn.config_set(name, before)


def configure(redis: Redis, configured: dict[str, str], name: str, value: str) -> None:
    with reader(redis) as conn:
        before: dict[str, str] = conn.config_get(name)
        configured.setdefault(name, before[name])
        conn.config_set(name, value)


def test_without_memory_it_is_an_outage_until_there_is_some(
    redis: Redis, configured: dict[str, str], stream: str, make_publisher: MakePublisher
) -> None:
    publisher = make_publisher(stream)
    configure(redis, configured, "maxmemory", "1")
    outcomes = publisher.publish([make_claim(), make_claim()])
    assert [refusal(o) for o in outcomes] == [("OOM", ErrorClass.OUTAGE)] * 2
    with pytest.raises(PublisherError, match="OOM"):
        publisher.probe()
    assert any("OOM" in r.text for r in publisher.check(SAMPLES) if r.level == "fail")
    configure(redis, configured, "maxmemory", "0")
    publisher.probe()
    assert isinstance(publish_one(publisher), Acked)
    assert len(entries(redis, stream)) == 1


def test_without_the_replicas_that_it_needs_it_is_an_outage(
    redis: Redis, configured: dict[str, str], stream: str, make_publisher: MakePublisher
) -> None:
    publisher = make_publisher(stream)
    configure(redis, configured, "min-replicas-to-write", "1")
    assert refusal(publish_one(publisher)) == ("NOREPLICAS", ErrorClass.OUTAGE)
    with pytest.raises(PublisherError, match="NOREPLICAS"):
        publisher.probe()


@pytest.mark.parametrize(
    ("setting", "code"), [("maxmemory", "OOM"), ("min-replicas-to-write", "NOREPLICAS")]
)
def test_what_redis_lacks_only_when_the_entries_are_queued_is_an_outage(
    setting: str,
    code: str,
    redis: Redis,
    configured: dict[str, str],
    stream: str,
    make_publisher: MakePublisher,
) -> None:
    until = time.monotonic() + 10
    wire = Wire(make_publisher(stream)._settings, until)
    transaction = Transaction(stream)
    transaction.add(0, pack("XADD", stream, "*", "payload", "x"))
    wire.send(transaction.message().removesuffix(EXEC), until)
    queued = [wire.read(until), wire.read(until)]
    configure(redis, configured, setting, "1")
    wire.send(EXEC, until)
    (outcome,) = transaction.outcomes(lambda: queued.pop(0) if queued else wire.read(until))
    wire.close()
    assert refusal(outcome) == (code, ErrorClass.OUTAGE)


def test_an_entry_too_long_for_the_server_is_dead_and_takes_nobody_along(
    redis: Redis, configured: dict[str, str], stream: str, make_publisher: MakePublisher
) -> None:
    configure(redis, configured, "proto-max-bulk-len", "1mb")
    publisher = make_publisher(
        stream + "-{event_type}", in_order=True, max_message_bytes=8_000_000, timeout=5
    )
    assert any("proto-max-bulk-len" in r.text for r in publisher.check([]) if r.level == "warn")
    sizes = {"a": [1], "b": [2, 4_000_000, 3], "c": [4]}
    batch = [
        make_claim(b"x" * size, event_type=name, ordering_key=name)
        for name, each in sizes.items()
        for size in each
    ]
    first = publisher.publish(batch)
    assert refusal(first[2]) == ("TOO_LARGE", ErrorClass.EVENT)
    assert isinstance(first[1], Acked)
    assert isinstance(first[3], Unsent)
    left = [c for c, o in zip(batch, first, strict=True) if not isinstance(o, Acked)]
    second = publisher.publish([c for c in left if c is not batch[2]])
    assert all(isinstance(o, Acked) for o in second)
    assert [len(entries(redis, f"{stream}-{name}")) for name in sizes] == [1, 2, 1]


def test_a_password_that_the_server_repeats_is_in_no_error(
    redis: Redis, stream: str, make_publisher: MakePublisher, tmp_path: Path
) -> None:
    secret = tmp_path / "password"
    secret.write_text("hunter2" * 20)  # of which Redis repeats the beginning
    with Redis(redis.folder / "without-auth", {"rename-command": 'AUTH ""'}) as server:
        publisher = make_publisher(stream, url=server.url, password=SecretRef(file=secret))
        outcome = publish_one(publisher)
        assert refusal(outcome) == ("ERR", ErrorClass.OUTAGE)
        assert "unknown command" in str(outcome)
        with pytest.raises(PublisherError) as raised:
            publisher.probe()
        for text in (str(outcome), str(raised.value), str(publisher.check(SAMPLES))):
            assert "hunter2" not in text


def test_a_missing_command_is_everybodys_whatever_the_users_name() -> None:
    # As Redis 7.2 and Valkey put it; those before do not name the user.
    no_command = ReplyError("NOPERM User monkey has no permissions to run the 'xadd' command")
    assert error_of(no_command).kind is ErrorClass.OUTAGE
    no_key = ReplyError("NOPERM No permissions to access a key")
    assert error_of(no_key).kind is ErrorClass.DESTINATION


def test_a_name_that_something_else_has_is_that_streams_fault_alone(
    redis: Redis, stream: str, make_publisher: MakePublisher
) -> None:
    with reader(redis) as conn:
        conn.set(f"{stream}.list", "not a stream")
    publisher = make_publisher(stream + ".{event_type}")
    batch = [make_claim(event_type=t) for t in ("good", "list", "good")]
    first, second, third = publisher.publish(batch)
    assert isinstance(first, Acked)
    assert isinstance(third, Acked)
    assert refusal(second) == ("WRONGTYPE", ErrorClass.DESTINATION)
    assert [parked.name for parked in publisher.parked()] == [f"{stream}.list"]
    publisher.probe()
    sample = {"event_type": "list", "aggregate_type": None, "tenant_id": None}
    (wrong,) = (r for r in publisher.check([sample]) if r.level == "fail")
    assert "is a string and not a stream" in wrong.text


def test_rights_on_one_stream_are_its_own_and_a_missing_command_is_everybodys(
    redis: Redis, stream: str, make_publisher: MakePublisher, tmp_path: Path
) -> None:
    user, secret = f"u{uuid.uuid4().hex}", tmp_path / "password"
    secret.write_text("right\n")
    (tmp_path / "user").write_text(user)
    rights = ["+multi", "+exec", "+discard", "+xadd"]
    with reader(redis) as conn:
        conn.execute_command("ACL", "SETUSER", user, "on", ">right", f"~{stream}.good", *rights)
        publisher = make_publisher(
            stream + ".{event_type}",
            username=SecretRef(file=tmp_path / "user"),
            password=SecretRef(file=secret),
        )
        batch = [make_claim(event_type=t) for t in ("good", "bad")]
        good, bad = publisher.publish(batch)
        assert isinstance(good, Acked)
        assert refusal(bad) == ("NOPERM", ErrorClass.DESTINATION)
        publisher.probe()
        sample = {"event_type": "bad", "aggregate_type": None, "tenant_id": None}
        levels = {r.level: r.text for r in publisher.check([sample])}
        assert "NOPERM" in levels["fail"]
        assert "cannot be read" in levels["warn"]
        conn.execute_command("ACL", "SETUSER", user, "-xadd")
        assert refusal(publish_one(publisher)) == ("NOPERM", ErrorClass.OUTAGE)
        with pytest.raises(BrokerRefused, match="NOPERM"):
            publisher.probe()
        conn.execute_command("ACL", "DELUSER", user)


def test_a_wrong_password_is_an_outage_and_the_right_one_is_read_without_a_restart(
    server: Redis, stream: str, make_publisher: MakePublisher, tmp_path: Path
) -> None:
    secret = tmp_path / "password"
    secret.write_text("wrong")
    with reader(server) as conn:
        conn.config_set("requirepass", "right")
    try:
        outcome = publish_one(make_publisher(stream))
        assert refusal(outcome) == ("NOAUTH", ErrorClass.OUTAGE)
        publisher = make_publisher(stream, password=SecretRef(file=secret))
        assert refusal(publish_one(publisher)) == ("WRONGPASS", ErrorClass.OUTAGE)
        with pytest.raises(BrokerRefused, match="WRONGPASS"):
            publisher.probe()
        secret.write_text("right")
        assert isinstance(publish_one(publisher), Acked)
    finally:
        with reader(server, password="right") as conn:
            conn.config_set("requirepass", "")


def test_a_replica_takes_nothing(redis: Redis, stream: str, make_publisher: MakePublisher) -> None:
    with Redis(redis.folder / "replica", {"replicaof": f"127.0.0.1 {redis.port}"}) as replica:
        publisher = make_publisher(stream, url=replica.url)
        wait_until(lambda: replicas(redis) == 1, 10, "it follows")
        assert refusal(publish_one(publisher)) == ("READONLY", ErrorClass.OUTAGE)
        with pytest.raises(PublisherError, match="READONLY"):
            publisher.probe()
        assert any("it is a replica" in r.text for r in publisher.check(SAMPLES))


def replicas(redis: Redis) -> int:
    with reader(redis) as conn:
        info: dict[str, str] = conn.info("replication")
        return sum(1 for n in range(9) if "online" in str(info.get(f"slave{n}")))


def test_an_acknowledgement_waits_for_replicas_and_a_missing_one_stores_nothing(
    redis: Redis, stream: str, make_publisher: MakePublisher
) -> None:
    wait = RedisWait(replicas=1, timeout=timedelta(seconds=1))
    publisher = make_publisher(stream, wait=wait)
    wait_until(lambda: replicas(redis) == 0, 10, "another test's replica has left")
    assert refusal(publish_one(publisher)) == ("NOREPLICAS", ErrorClass.OUTAGE)
    with pytest.raises(PublisherError, match="0 of 1"):
        publisher.probe()
    with Redis(redis.folder / "replica", {"replicaof": f"127.0.0.1 {redis.port}"}) as replica:
        wait_until(lambda: replicas(redis) == 1, 10, "it follows")
        with reader(redis) as conn:
            assert conn.wait(1, 4000) == 1  # it has its first copy, and answers
        assert isinstance(publish_one(publisher), Acked)
        publisher.probe()
        replica.pause()  # connected, and yet it confirms nothing
        assert refusal(publish_one(publisher)) == ("NOT_COPIED", ErrorClass.OUTAGE)
        # From then on it is asked first, so that tries do not pile up copies.
        assert refusal(publish_one(publisher)) == ("NOREPLICAS", ErrorClass.OUTAGE)
        with pytest.raises(PublisherError, match="0 of 1"):
            publisher.probe()
        replica.resume()
    assert len(entries(redis, stream)) == 2  # one is in doubt, not lost


def test_what_the_server_has_and_too_few_replicas_is_in_doubt() -> None:
    copies = Copies(RedisWait(replicas=2))
    assert copies.shortfall(2) is None
    short = copies.shortfall(1)
    assert short is not None
    assert refusal(short) == ("NOT_COPIED", ErrorClass.OUTAGE)
    assert "1 of 2 replicas" in short.error.text
    on_disk = Copies(RedisWait(aof=True))
    assert on_disk.shortfall([1, 0]) is None
    assert on_disk.shortfall([0, 0]) is not None
    assert on_disk.shortfall(ReplyError("ERR no")) is not None


def test_a_server_that_cannot_wait_for_its_disk_gets_nothing(
    redis: Redis, stream: str, make_publisher: MakePublisher
) -> None:
    with reader(redis) as conn:
        info: dict[str, str] = conn.info("server")
        if tuple(map(int, info["redis_version"].split("."))) >= (7, 2):
            pytest.skip("this server can")
    publisher = make_publisher(stream, wait=RedisWait(aof=True))
    assert refusal(publish_one(publisher)) == ("NO_AOF", ErrorClass.OUTAGE)
    assert entries(redis, stream) == []


def test_a_node_of_a_cluster_is_named_as_such(
    redis: Redis, stream: str, make_publisher: MakePublisher
) -> None:
    # By default it is ten thousand above the other, which may belong to somebody.
    settings = {"cluster-enabled": "yes", "cluster-port": str(free_port())}
    with Redis(redis.folder / "node", settings) as node:
        publisher = make_publisher(stream, url=node.url)
        outcome = publish_one(publisher)
        assert refusal(outcome) == ("CLUSTERDOWN", ErrorClass.OUTAGE)
        assert any("Redis Cluster" in r.text for r in publisher.check(SAMPLES))


def test_what_is_too_large_in_order_stops_its_key_and_nobody_else(
    redis: Redis, stream: str, make_publisher: MakePublisher
) -> None:
    publisher = make_publisher(stream, in_order=True, max_message_bytes=2000)
    batch = [
        make_claim(b"1", ordering_key="a"),
        make_claim(b"x" * 3000, ordering_key="a"),
        make_claim(b"3", ordering_key="a"),
        make_claim(b"4", ordering_key="b"),
    ]
    first, large, behind, other = publisher.publish(batch)
    assert refusal(large) == ("TOO_LARGE", ErrorClass.EVENT)
    assert isinstance(behind, Unsent)
    assert isinstance(first, Acked)
    assert isinstance(other, Acked)
    assert [e.number for e in entries(redis, stream)] == [1, 4]


def test_memory_and_disk_are_judged_by_the_check(
    redis: Redis, configured: dict[str, str], stream: str, make_publisher: MakePublisher
) -> None:
    publisher = make_publisher(stream)
    configure(redis, configured, "maxmemory", "1000000000")
    configure(redis, configured, "maxmemory-policy", "allkeys-lru")
    (wrong,) = (r for r in publisher.check(SAMPLES) if r.level == "fail")
    assert "deletes whole streams" in wrong.text
    assert "noeviction" in wrong.cure
    configure(redis, configured, "maxmemory-policy", "noeviction")
    configure(redis, configured, "appendfsync", "always")
    assert any("on its disk" in r.text for r in publisher.check(SAMPLES))
    configure(redis, configured, "appendonly", "no")
    assert any("memory only" in r.text for r in publisher.check(SAMPLES) if r.level == "warn")


def test_tls_with_the_right_ca_and_not_with_another(
    redis: Redis, stream: str, make_publisher: MakePublisher, tmp_path: Path
) -> None:
    ours, other = Authority(tmp_path / "ours", "ours"), Authority(tmp_path / "other", "other")
    issued = ours.issue("redis", "localhost")
    settings = {
        "tls-cert-file": str(issued.cert),
        "tls-key-file": str(issued.key),
        "tls-ca-cert-file": str(ours.cert),
        "tls-auth-clients": "no",
    }
    server = Redis(redis.folder / "tls", settings)
    tls_port = free_port()
    server.settings["tls-port"] = str(tls_port)
    with server:
        url = f"rediss://localhost:{tls_port}/3"
        publisher = make_publisher(stream, url=url, tls=Tls(ca_file=ours.cert))
        assert isinstance(publish_one(publisher), Acked)
        assert len(entries(server, stream, db=3)) == 1
        distrustful = make_publisher(stream, url=url, tls=Tls(ca_file=other.cert))
        assert refusal(publish_one(distrustful)) == ("TLS_FAILED", ErrorClass.OUTAGE)
        with pytest.raises(BrokerRefused, match="not trusted"):
            distrustful.probe()

"""Entries as another client reads them."""

from datetime import UTC, datetime

import pytest

from broker.redis.servers import MakePublisher, entries
from conformance.publisher_contract import make_claim
from dev.services.redis import Redis
from outbox_core.contract.publishers.redis import RedisSettings
from outbox_core.errors import SettingsError
from outbox_core.model.attempt import Acked, Refused
from outbox_relay.publishers.redis import validate

pytestmark = pytest.mark.redis


def test_an_entry_has_payload_key_and_headers_in_order_with_repeats(
    redis: Redis, stream: str, make_publisher: MakePublisher
) -> None:
    claim = make_claim(
        b"\x00\xff",
        headers=[("tag", "a"), ("ort", "Zürich"), ("tag", "b"), ("none", None)],
        ordering_key="k1",
        created_at=datetime(2026, 6, 1, 12, tzinfo=UTC),
    )
    (outcome,) = make_publisher(stream).publish([claim])
    (entry,) = entries(redis, stream)
    assert outcome == Acked(f"{stream}@{entry.id}")
    assert list(entry.fields) == [b"payload", b"key", b"headers"]
    assert entry.fields[b"payload"] == b"\x00\xff"
    assert entry.fields[b"key"] == b"k1"
    assert entry.headers == [
        ("tag", "a"),
        ("ort", "Zürich"),
        ("tag", "b"),
        ("none", None),
        ("outbox-event-id", claim.event_id),
        ("outbox-event-type", "order.created"),
        ("outbox-attempt", "1"),
        ("outbox-created-at", "2026-06-01T12:00:00.000000Z"),
    ]


def test_an_event_without_a_key_has_no_such_field(
    redis: Redis, stream: str, make_publisher: MakePublisher
) -> None:
    make_publisher(stream).publish([make_claim()])
    (entry,) = entries(redis, stream)
    assert list(entry.fields) == [b"payload", b"headers"]


def test_debeziums_entry_has_key_value_and_id(
    redis: Redis, stream: str, make_publisher: MakePublisher
) -> None:
    publisher = make_publisher(stream, format="Debezium")
    claim = make_claim(b"{}", aggregate_id="42")
    good, bad = publisher.publish([claim, make_claim()])
    assert isinstance(good, Acked)
    assert isinstance(bad, Refused)
    assert bad.error.code == "NO_AGGREGATE_ID"
    (entry,) = entries(redis, stream)
    assert entry.fields == {b"key": b"42", b"value": b"{}", b"ID": claim.event_id.encode()}


def test_a_stream_is_trimmed_to_about_its_length(
    redis: Redis, stream: str, make_publisher: MakePublisher
) -> None:
    publisher = make_publisher(stream, max_length=100)
    publisher.publish([make_claim(str(n).encode()) for n in range(1000)])
    kept = entries(redis, stream)
    assert 100 <= len(kept) <= 300  # Redis trims by whole nodes, of 100 entries each
    assert kept[-1].number == 999


def test_a_batch_of_several_transactions_arrives_in_order(
    redis: Redis, stream: str, make_publisher: MakePublisher
) -> None:
    publisher = make_publisher(stream, in_order=True)
    batch = [make_claim(str(n).encode(), ordering_key="k") for n in range(2500)]
    batch += [make_claim(b"9" * 9 + b" " * 600_000, ordering_key="k") for _ in range(3)]
    assert all(isinstance(o, Acked) for o in publisher.publish(batch))
    assert [e.number for e in entries(redis, stream)] == [*range(2500), *[999999999] * 3]


@pytest.mark.parametrize("stream", ["{payload}", "{event_type", "bell\a"])
def test_a_template_that_makes_no_stream_is_refused_early(stream: str) -> None:
    with pytest.raises(SettingsError, match=r"redis\.stream"):
        validate(RedisSettings(url="redis://h", stream=stream))


def test_a_password_in_the_url_is_refused_without_being_shown() -> None:
    with pytest.raises(ValueError, match="must not contain a user name or a password") as caught:
        RedisSettings(url="redis://:hunter2@h")
    assert "username and password fields" in str(caught.value)


@pytest.mark.parametrize("host", ["h:99999", "[:]", "a..b", "a" * 70])
def test_a_url_that_nobody_could_connect_to_is_refused_early(host: str) -> None:
    with pytest.raises(SettingsError, match=r"redis\.url"):
        validate(RedisSettings(url=f"redis://{host}"))

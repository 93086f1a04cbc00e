"""What a consumer finds in Kafka."""

import json
import time
from datetime import UTC, datetime

import pytest
from cloudevents.core.bindings.kafka import KafkaMessage, from_binary
from cloudevents.core.formats.json import JSONFormat

from broker.kafka.publishers import MakePublisher
from conformance.publisher_contract import make_claim
from fixtures.topics import Consume, MakeTopic, Message
from outbox_core.model.attempt import Acked, ErrorClass, Refused, Unsent

pytestmark = pytest.mark.kafka


def headers_of(message: Message) -> dict[str, bytes | None]:
    return dict(message.headers)


def test_em_07_another_template_sends_the_same_event_to_another_topic(
    make_topic: MakeTopic, make_publisher: MakePublisher, consume: Consume
) -> None:
    claim = make_claim(event_type="order.updated.v2", tenant_id="acme")
    by_type = make_topic(name="em-07.order.updated.v2")
    by_tenant = make_topic(name="em-07.acme")
    make_publisher("em-07.{event_type}").publish([claim])
    make_publisher("em-07.{tenant_id}").publish([claim])
    (one,), (two,) = consume(by_type, 1), consume(by_tenant, 1)
    assert headers_of(one)["outbox-event-type"] == b"order.updated.v2"
    assert headers_of(two)["outbox-event-type"] == b"order.updated.v2"


def test_one_batch_may_go_to_several_topics(
    make_topic: MakeTopic, make_publisher: MakePublisher, consume: Consume
) -> None:
    for kind in ("a", "b"):
        make_topic(name=f"several.{kind}")
    publisher = make_publisher("several.{event_type}")
    publisher.publish([make_claim(event_type="ab"[n % 2]) for n in range(10)])
    assert len(consume("several.a", 5)) == 5
    assert len(consume("several.b", 5)) == 5


def test_an_illegal_topic_name_is_an_error_of_that_event_alone(
    topic: str, make_publisher: MakePublisher, consume: Consume
) -> None:
    publisher = make_publisher("{event_type}")
    outcomes = publisher.publish(
        [
            make_claim(event_type=topic),
            make_claim(event_type="no topic"),
            make_claim(event_type=topic),
        ]
    )
    assert [type(o) for o in outcomes] == [Acked, Refused, Acked]
    assert isinstance(outcomes[1], Refused)
    assert outcomes[1].error.kind is ErrorClass.EVENT
    assert len(consume(topic, 2)) == 2


def test_ce_13_the_result_says_topic_partition_and_offset(
    make_topic: MakeTopic, make_publisher: MakePublisher
) -> None:
    topic = make_topic(partitions=1)
    outcomes = make_publisher(topic).publish([make_claim(), make_claim()])
    assert outcomes == [Acked(f"{topic}[0]@0"), Acked(f"{topic}[0]@1")]


def test_em_16_oo_24_the_partition_key_is_the_records_key(
    make_topic: MakeTopic, make_publisher: MakePublisher, consume: Consume
) -> None:
    topic = make_topic(partitions=1)
    make_publisher(topic).publish(
        [
            make_claim(partition_key="p", ordering_key="o"),
            make_claim(ordering_key="Schlüssel"),
            make_claim(),
            make_claim(partition_key=""),
        ]
    )
    assert [m.key for m in consume(topic, 4)] == [b"p", "Schlüssel".encode(), None, b""]


def test_tc_36_events_of_one_partition_key_share_a_partition(
    make_topic: MakeTopic, make_publisher: MakePublisher, consume: Consume
) -> None:
    topic = make_topic(partitions=12)
    batch = [make_claim(partition_key=f"key-{n % 5}") for n in range(100)]
    make_publisher(topic).publish(batch)
    places = {(m.key, m.partition) for m in consume(topic, 100)}
    assert len(places) == 5


def test_oo_24_events_without_a_key_are_spread(
    make_topic: MakeTopic, make_publisher: MakePublisher, consume: Consume
) -> None:
    topic = make_topic(partitions=3)
    make_publisher(topic, config={"sticky.partitioning.linger.ms": 0}).publish(
        [make_claim() for _ in range(200)]
    )
    assert {m.partition for m in consume(topic, 200)} == {0, 1, 2}


def test_a_key_lands_where_javas_partitioner_puts_it(
    make_topic: MakeTopic, make_publisher: MakePublisher, consume: Consume
) -> None:
    topic = make_topic(partitions=12)
    keys = ["key-1", "key-2", "Schlüssel", "a", "order-4711"]
    make_publisher(topic).publish([make_claim(partition_key=key) for key in keys])
    found = {m.key: m.partition for m in consume(topic, len(keys)) if m.key is not None}
    assert found == {key.encode(): java_partition(key.encode(), 12) for key in keys}


def java_partition(key: bytes, partitions: int) -> int:
    """Murmur2 as in Kafka's Java client, written after its description."""
    mask, m = 0xFFFFFFFF, 0x5BD1E995
    h = (0x9747B28C ^ len(key)) & mask
    whole = len(key) // 4 * 4
    for at in range(0, whole, 4):
        k = int.from_bytes(key[at : at + 4], "little") * m & mask
        k = (k ^ k >> 24) * m & mask
        h = h * m & mask ^ k
    if rest := key[whole:]:
        h = (h ^ int.from_bytes(rest, "little")) * m & mask
    h = (h ^ h >> 13) * m & mask
    return ((h ^ h >> 15) & 0x7FFFFFFF) % partitions


@pytest.mark.parametrize("partitions", [1, 12])
@pytest.mark.parametrize("in_order", [False, True])
def test_oo_45_outcomes_do_not_depend_on_the_number_of_partitions(
    partitions: int, in_order: bool, make_topic: MakeTopic, make_publisher: MakePublisher
) -> None:
    topic = make_topic(partitions, {"max.message.bytes": "2000"})
    publisher = make_publisher(topic, in_order=in_order)
    batch = [make_claim(b"x" * (5000 if n == 3 else 10), ordering_key=f"key-{n}") for n in range(8)]
    outcomes = list(publisher.publish(batch))
    # In order, what the failed producer still held was given back, and is tried again.
    unsent = [n for n, outcome in enumerate(outcomes) if isinstance(outcome, Unsent)]
    assert in_order or not unsent
    for n, outcome in zip(unsent, publisher.publish([batch[n] for n in unsent]), strict=True):
        outcomes[n] = outcome
    assert [n for n, o in enumerate(outcomes) if not isinstance(o, Acked)] == [3]


def test_em_25_headers_keep_case_order_and_repetition(
    topic: str, make_publisher: MakePublisher, consume: Consume
) -> None:
    stored = [
        ("X-Trace", "1"),
        ("x-trace", "2"),
        ("X-Trace", "1"),
        ("empty", ""),
        ("null", None),
        ("ключ", "значение"),
        ("", "nameless"),
        ("outbox-event-id", "the application's own"),
    ]
    make_publisher(topic).publish([make_claim(headers=stored)])
    (message,) = consume(topic, 1)
    expected = [(name, None if value is None else value.encode()) for name, value in stored]
    assert message.headers[: len(stored)] == expected


def test_oo_23_what_the_publisher_adds_is_prefixed(
    topic: str, make_publisher: MakePublisher, consume: Consume
) -> None:
    make_publisher(topic).publish([make_claim(headers={"mine": "1"}, tenant_id="acme")])
    (message,) = consume(topic, 1)
    added = [name for name, _ in message.headers if name != "mine"]
    assert added
    assert all(name.startswith("outbox-") for name in added)


def test_ek_01_a_message_alone_tells_type_aggregate_and_time(
    topic: str, make_publisher: MakePublisher, consume: Consume
) -> None:
    created = datetime(2026, 3, 4, 5, 6, 7, 89, tzinfo=UTC)
    claim = make_claim(
        aggregate_type="Order", aggregate_id="42", created_at=created, attempts=2, tenant_id="acme"
    )
    make_publisher(topic).publish([claim])
    (message,) = consume(topic, 1)
    headers = headers_of(message)
    assert headers["outbox-event-id"] == claim.event_id.encode()
    assert headers["outbox-event-type"] == b"order.created"
    assert headers["outbox-aggregate-type"] == b"Order"
    assert headers["outbox-aggregate-id"] == b"42"
    assert headers["outbox-tenant-id"] == b"acme"
    assert headers["outbox-attempt"] == b"2"
    assert headers["outbox-created-at"] == b"2026-03-04T05:06:07.000089Z"


@pytest.mark.parametrize(
    ("format", "name"), [("Raw", "outbox-idempotency-key"), ("CloudEvents", "ce_idempotencykey")]
)
def test_ce_25_the_idempotency_key_travels_along(
    format: str, name: str, topic: str, make_publisher: MakePublisher, consume: Consume
) -> None:
    make_publisher(topic, format=format).publish([make_claim(idempotency_key="order:42:created")])
    (message,) = consume(topic, 1)
    assert headers_of(message)[name] == b"order:42:created"


TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.mark.parametrize("format", ["Raw", "CloudEvents"])
@pytest.mark.parametrize(
    "fields",
    [{"headers": {"traceparent": TRACE}}, {"traceparent_in_metadata": TRACE}],
    ids=["in headers", "in metadata"],
)
def test_tc_34_the_trace_goes_on_in_the_message(
    fields: dict[str, str],
    format: str,
    topic: str,
    make_publisher: MakePublisher,
    consume: Consume,
) -> None:
    make_publisher(topic, format=format).publish([make_claim(**fields)])  # type: ignore[arg-type]
    (message,) = consume(topic, 1)
    assert [v for n, v in message.headers if n == "traceparent"] == [TRACE.encode()]


def test_a_record_is_dated_when_it_is_published_not_when_it_was_created(
    topic: str, make_publisher: MakePublisher, consume: Consume
) -> None:
    make_publisher(topic).publish([make_claim(created_at=datetime(2001, 1, 1, tzinfo=UTC))])
    (message,) = consume(topic, 1)
    assert abs(message.timestamp / 1000 - time.time()) < 30


def test_another_implementation_reads_our_cloud_events(
    topic: str, make_publisher: MakePublisher, consume: Consume
) -> None:
    claim = make_claim(
        b'{"total": 12}',
        headers={"region": "eu"},
        content_type="application/json",
        aggregate_id="42",
        aggregate_type="Order",
        ordering_key="order-42",
        correlation_id="cor",
        causation_id="cau",
        tenant_id="acme",
        occurred_at=datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC),
    )
    make_publisher(topic, format="CloudEvents", source="/shop/orders").publish([claim])
    (message,) = consume(topic, 1)
    assert message.value is not None
    headers = {name: value for name, value in message.headers if value is not None}
    event = from_binary(KafkaMessage(headers, message.key, message.value), JSONFormat())
    assert event.get_specversion() == "1.0"
    assert event.get_id() == claim.event_id
    assert event.get_source() == "/shop/orders"
    assert event.get_type() == "order.created"
    assert event.get_subject() == "42"
    assert event.get_time() == datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
    assert event.get_datacontenttype() == "application/json"
    assert event.get_data() == json.loads(claim.payload)
    assert event.get_extension("partitionkey") == "order-42"
    assert event.get_extension("correlationid") == "cor"
    assert event.get_extension("causationid") == "cau"
    assert event.get_extension("tenantid") == "acme"
    assert event.get_extension("aggregatetype") == "Order"
    assert int(event.get_extension("sequence")) == claim.seq
    assert headers["region"] == b"eu"
    assert headers["outbox-attempt"] == b"1"

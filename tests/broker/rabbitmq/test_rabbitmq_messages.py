"""Messages as another client reads them."""

from datetime import UTC, datetime

import pytest

from broker.rabbitmq.publishers import Broker, MakePublisher
from conformance.publisher_contract import make_claim
from outbox_core.model.attempt import Acked

pytestmark = pytest.mark.rabbitmq

MOMENT = datetime(2026, 5, 1, 12, 0, 7, 345, tzinfo=UTC)


def test_the_properties_say_what_consumers_look_for_first(
    make_publisher: MakePublisher, broker: Broker, queue: str
) -> None:
    claim = make_claim(
        b'{"a": 1}',
        content_type="application/json",
        correlation_id="c-7",
        created_at=MOMENT,
    )
    assert make_publisher(queue).publish([claim]) == [Acked(f"/{queue}")]
    (message,) = broker.read(queue, 1)
    found = {
        name: value for name, value in message.properties.items() if name != "application_headers"
    }
    assert found == {
        "content_type": "application/json",
        "delivery_mode": 2,
        "correlation_id": "c-7",
        "message_id": claim.event_id,
        "timestamp": int(MOMENT.timestamp()),
        "type": "order.created",
    }
    assert message.delivery_info["routing_key"] == queue


def test_of_a_name_that_occurs_twice_the_last_value_arrives(
    make_publisher: MakePublisher, broker: Broker, queue: str
) -> None:
    headers = [("a", "1"), ("outbox-event-id", "mine"), ("a", "2"), ("empty", ""), ("none", None)]
    claim = make_claim(headers=headers)
    make_publisher(queue).publish([claim])
    (message,) = broker.read(queue, 1)
    assert message.headers["a"] == "2"
    assert message.headers["outbox-event-id"] == claim.event_id
    assert message.headers["empty"] == ""
    assert message.headers["none"] is None


def test_what_is_too_long_for_a_property_is_in_the_headers_alone(
    make_publisher: MakePublisher, broker: Broker, queue: str
) -> None:
    claim = make_claim(correlation_id="c" * 300)
    make_publisher(queue).publish([claim])
    (message,) = broker.read(queue, 1)
    assert "correlation_id" not in message.properties
    assert message.headers["outbox-correlation-id"] == "c" * 300


def test_cloud_events_have_the_prefix_of_the_binding_for_amqp(
    make_publisher: MakePublisher, broker: Broker, queue: str
) -> None:
    claim = make_claim(headers={"content-type": "text/x"}, occurred_at=MOMENT)
    make_publisher(queue, format="CloudEvents", source="/shop").publish([claim])
    (message,) = broker.read(queue, 1)
    assert message.properties["content_type"] == "text/x"
    ours = {n: v for n, v in message.headers.items() if n.startswith("cloudEvents:")}
    assert ours["cloudEvents:specversion"] == "1.0"
    assert ours["cloudEvents:source"] == "/shop"
    assert ours["cloudEvents:id"] == claim.event_id
    assert ours["cloudEvents:type"] == "order.created"
    assert ours["cloudEvents:time"] == "2026-05-01T12:00:07.000345Z"


def test_debezium_has_the_header_id_alone(
    make_publisher: MakePublisher, broker: Broker, queue: str
) -> None:
    claim = make_claim(headers={"a": "1"})
    make_publisher(queue, format="Debezium").publish([claim])
    (message,) = broker.read(queue, 1)
    assert message.headers == {"id": claim.event_id}


def test_an_exchange_of_its_own_takes_an_event_to_every_bound_queue(
    make_publisher: MakePublisher, broker: Broker
) -> None:
    all_of_them, orders = broker.queue(), broker.queue()
    exchange = broker.exchange(**{all_of_them: "#", orders: "order.*"})
    publisher = make_publisher("{event_type}", exchange=exchange)
    types = ("order.created", "order.paid", "refund.asked")
    outcomes = publisher.publish([make_claim(event_type=t) for t in types])
    assert outcomes == [Acked(f"{exchange}/{t}") for t in types]
    assert len(broker.read(all_of_them, 3)) == 3
    assert len(broker.read(orders, 2)) == 2

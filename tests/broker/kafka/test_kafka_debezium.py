"""Format Debezium: a consumer of its outbox event router finds what it is used to."""

import pytest

from broker.kafka.publishers import MakePublisher
from conformance.publisher_contract import make_claim
from fixtures.topics import Consume, MakeTopic
from outbox_core.model.attempt import Acked

pytestmark = pytest.mark.kafka

TEMPLATE = "outbox.event.{aggregate_type}"


def test_topic_key_header_and_value_are_those_of_the_event_router(
    make_topic: MakeTopic, make_publisher: MakePublisher, consume: Consume
) -> None:
    topic = make_topic(name="outbox.event.Order")
    payload = b'{"total": 12}\n\x00\xff'
    claim = make_claim(
        payload,
        headers={"region": "eu", "traceparent": "00-a-b-01"},
        content_type="application/json",
        aggregate_type="Order",
        aggregate_id="42",
        partition_key="p",
        ordering_key="order-42",
        tenant_id="acme",
    )
    publisher = make_publisher(TEMPLATE, format="Debezium")
    assert isinstance(publisher.publish([claim])[0], Acked)
    (message,) = consume(topic, 1)
    assert (message.key, message.value) == (b"42", payload)
    assert message.headers == [("id", claim.event_id.encode())]


@pytest.mark.parametrize("in_order", [False, True])
def test_an_event_without_an_aggregates_id_has_no_key_and_waits_for_its_turn(
    in_order: bool, topic: str, make_publisher: MakePublisher, consume: Consume
) -> None:
    """As from Debezium; without a key it may be in any partition, so it has no common route."""
    publisher = make_publisher(topic, format="Debezium", in_order=in_order)
    claim = make_claim(ordering_key="a", partition_key="p")
    assert publisher.route(claim) is None
    assert isinstance(publisher.publish([claim])[0], Acked)
    (message,) = consume(topic, 1)
    assert message.key is None


def test_a_key_is_in_one_partition_while_its_events_are_of_one_aggregate(
    make_topic: MakeTopic, make_publisher: MakePublisher, consume: Consume
) -> None:
    topic = make_topic(partitions=12)
    batch = [
        make_claim(str(n).encode(), ordering_key=f"order-{n % 5}", aggregate_id=str(n % 5))
        for n in range(100)
    ]
    publisher = make_publisher(topic, format="Debezium", in_order=True)
    assert all(isinstance(outcome, Acked) for outcome in publisher.publish(batch))
    found = consume(topic, 100)
    assert len({(m.key, m.partition) for m in found}) == 5
    for key in range(5):
        values = [int(m.value or b"") for m in found if m.key == str(key).encode()]
        assert values == sorted(values)


def test_events_of_one_key_and_several_aggregates_have_no_common_route(
    make_publisher: MakePublisher,
) -> None:
    """So the relay sends the second when the first was acknowledged."""
    publisher = make_publisher("orders", format="Debezium", in_order=True)
    one, two = (make_claim(ordering_key="o", aggregate_id=id) for id in "12")
    assert publisher.route(one) is not None
    assert publisher.route(one) == publisher.route(one._replace(seq=7, partition_key="p"))
    assert publisher.route(one) != publisher.route(two)

"""Kafka keeps the contract of a publisher, in either format, in order or not."""

from dataclasses import dataclass

import pytest

from broker.publishers import MakePublisher
from conformance.publisher_contract import PublisherContract, Received, Target, make_claim
from dev.services import Kafka
from fixtures.topics import Consume
from outbox_core.model.event import Claim
from outbox_relay.publishers.kafka import KafkaPublisher

pytestmark = pytest.mark.kafka

ID_HEADER = {"Raw": "outbox-event-id", "CloudEvents": "ce_id"}


@dataclass
class KafkaTarget:
    publisher: KafkaPublisher
    broker: Kafka
    topic: str
    consume: Consume
    id_header: str

    def received(self, n: int) -> list[Received]:
        found = []
        for message in self.consume(self.topic, n):
            assert message.value is not None  # a tombstone is not an empty payload
            (event_id,) = [v for name, v in message.headers if name == self.id_header and v]
            key = None if message.key is None else message.key.decode()
            found.append(Received(message.value, key, message.headers, event_id.decode()))
        return found

    def refused_claim(self) -> Claim:
        return make_claim(b"x" * 1_100_000)

    def break_down(self) -> None:
        self.publisher.probe()  # connected, as it is in the middle of a run
        self.broker.pause()


@pytest.fixture
def target(
    request: pytest.FixtureRequest,
    frozen_broker: Kafka,
    topic: str,
    consume: Consume,
    make_publisher: MakePublisher,
) -> Target:
    format, in_order = request.param
    timeout = 3 if "tc_15" in request.node.name else 20
    publisher = make_publisher(topic, in_order=in_order, timeout=timeout, format=format)
    return KafkaTarget(publisher, frozen_broker, topic, consume, ID_HEADER[format])


@pytest.mark.parametrize(
    "target",
    [("Raw", False), ("CloudEvents", False), ("Raw", True)],
    ids=["Raw", "CloudEvents", "Raw in order"],
    indirect=True,
)
class TestKafka(PublisherContract):
    pass

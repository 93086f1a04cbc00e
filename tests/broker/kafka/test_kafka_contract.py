"""Kafka keeps the contract of a publisher, in every format, in order or not."""

from dataclasses import dataclass

import pytest

from broker.kafka.publishers import MakePublisher
from conformance.publisher_contract import PublisherContract, Received, Target, make_claim
from dev.services import Kafka
from fixtures.topics import Consume
from outbox_core.model.event import Claim
from outbox_relay.publishers.kafka.publisher import KafkaPublisher

pytestmark = pytest.mark.kafka

ID_HEADER = {"Raw": "outbox-event-id", "CloudEvents": "ce_id", "Debezium": "id"}


@dataclass
class KafkaTarget(Target):
    publisher: KafkaPublisher
    broker: Kafka
    topic: str
    consume: Consume
    format: str

    def __post_init__(self) -> None:
        self.carries_headers = self.format != "Debezium"

    def fit(self, claim: Claim) -> Claim:
        return claim._replace(aggregate_id="42") if self.format == "Debezium" else claim

    def received(self, n: int) -> list[Received]:
        found = []
        for message in self.consume(self.topic, n):
            assert message.value is not None  # a tombstone is not an empty payload
            id_header = ID_HEADER[self.format]
            (event_id,) = [v for name, v in message.headers if name == id_header and v]
            key = None if message.key is None else message.key.decode()
            found.append(Received(message.value, key, message.headers, event_id.decode()))
        return found

    def refused_claim(self) -> Claim:
        return self.fit(make_claim(b"x" * 1_100_000))

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
    return KafkaTarget(publisher, frozen_broker, topic, consume, format)


@pytest.mark.parametrize(
    "target",
    [("Raw", False), ("CloudEvents", False), ("Debezium", False), ("Raw", True)],
    ids=["Raw", "CloudEvents", "Debezium", "Raw in order"],
    indirect=True,
)
class TestKafka(PublisherContract):
    pass

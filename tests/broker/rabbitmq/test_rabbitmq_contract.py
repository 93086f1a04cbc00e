"""RabbitMQ keeps the contract of a publisher, in every format."""

from dataclasses import dataclass

import pytest

from broker.rabbitmq.publishers import Broker, MakePublisher
from conformance.publisher_contract import PublisherContract, Received, Target, make_claim
from dev.services import RabbitMQ
from outbox_core.model.event import Claim
from outbox_relay.publishers.rabbitmq.publisher import RabbitMQPublisher

pytestmark = pytest.mark.rabbitmq

ID_HEADER = {"Raw": "outbox-event-id", "CloudEvents": "cloudEvents:id", "Debezium": "id"}


@dataclass
class RabbitMQTarget(Target):
    publisher: RabbitMQPublisher
    server: RabbitMQ
    queue: str
    broker: Broker
    format: str

    def __post_init__(self) -> None:
        self.carries_headers = self.format != "Debezium"

    def received(self, n: int) -> list[Received]:
        found = []
        for message in self.broker.read(self.queue, n):
            headers = [
                (name, None if value is None else value.encode())
                for name, value in message.headers.items()
            ]
            event_id = message.headers[ID_HEADER[self.format]]
            assert message.properties["message_id"] == event_id
            found.append(Received(_bytes(message.body), None, headers, event_id))
        return found

    def refused_claim(self) -> Claim:
        return make_claim(b"x" * 1_100_000)

    def break_down(self) -> None:
        self.publisher.probe()  # connected, as it is in the middle of a run
        self.server.pause()


def _bytes(body: str | bytes) -> bytes:
    return body.encode() if isinstance(body, str) else body


@pytest.fixture
def target(
    request: pytest.FixtureRequest,
    frozen_rabbitmq: RabbitMQ,
    broker: Broker,
    queue: str,
    make_publisher: MakePublisher,
) -> Target:
    timeout = 3 if "tc_15" in request.node.name else 20
    publisher = make_publisher(queue, timeout=timeout, format=request.param)
    return RabbitMQTarget(publisher, frozen_rabbitmq, queue, broker, request.param)


@pytest.mark.parametrize("target", ["Raw", "CloudEvents", "Debezium"], indirect=True)
class TestRabbitMQ(PublisherContract):
    pass

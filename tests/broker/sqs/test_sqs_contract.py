"""SQS keeps the contract of a publisher, in every format, with standard queues and with FIFO."""

from dataclasses import dataclass, field

import pytest

from broker.sqs.conftest import MakePublisher
from broker.sqs.queues import Message, Queues
from conformance.publisher_contract import PublisherContract, Received, Target, make_claim
from dev.services import ElasticMq
from outbox_core.model.event import Claim
from outbox_relay.publishers.sqs.publisher import SqsPublisher

pytestmark = pytest.mark.sqs

ID_HEADER = {"Raw": "outbox-event-id", "CloudEvents": "ce-id", "Debezium": "id"}


@dataclass
class SqsTarget(Target):
    publisher: SqsPublisher
    server: ElasticMq
    queues: Queues
    queue: str
    format: str
    deduplicates: bool
    seen: list[Message] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.carries_headers = self.format != "Debezium"

    def received(self, n: int) -> list[Received]:
        # What was received is deleted, so that a FIFO queue hands out what is behind it.
        self.seen += self.queues.received(self.queue, n - len(self.seen))
        return [
            Received(m.payload, m.group, m.headers, str(m.value(ID_HEADER[self.format])))
            for m in self.seen
        ]

    def refused_claim(self) -> Claim:
        return make_claim(b"x" * 1_100_000)

    def break_down(self) -> None:
        self.publisher.probe()  # connected, as it is in the middle of a run
        self.server.pause()


@pytest.fixture
def target(
    request: pytest.FixtureRequest,
    frozen_elasticmq: ElasticMq,
    queues: Queues,
    make_publisher: MakePublisher,
) -> Target:
    format, fifo = request.param
    queue = queues.make(fifo)
    quick = any(part in request.node.name for part in ("tc_15", "does_not_answer"))
    publisher = make_publisher(queue, timeout=2 if quick else 20, format=format)
    return SqsTarget(publisher, frozen_elasticmq, queues, queue, format, deduplicates=fifo)


@pytest.mark.parametrize(
    "target",
    [("Raw", False), ("CloudEvents", False), ("Debezium", False), ("Raw", True)],
    ids=["Raw", "CloudEvents", "Debezium", "Raw in FIFO queues"],
    indirect=True,
)
class TestSqs(PublisherContract):
    pass

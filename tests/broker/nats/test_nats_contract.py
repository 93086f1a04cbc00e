"""NATS keeps the contract of a publisher, in every format, with atomic batches and without."""

from dataclasses import dataclass

import pytest

from broker.nats.conftest import MakePublisher
from broker.nats.streams import Admin
from conformance.publisher_contract import PublisherContract, Received, Target, make_claim
from dev.services import Nats
from outbox_core.model.event import Claim
from outbox_relay.publishers.nats.publisher import NatsPublisher

pytestmark = pytest.mark.nats

ID_HEADER = {"Raw": "outbox-event-id", "CloudEvents": "ce-id", "Debezium": "id"}


@dataclass
class NatsTarget(Target):
    publisher: NatsPublisher
    server: Nats
    admin: Admin
    stream: str
    format: str
    deduplicates: bool

    def __post_init__(self) -> None:
        self.carries_headers = self.format != "Debezium"

    def received(self, n: int) -> list[Received]:
        return [
            Received(m.payload, None, [*m.headers], m.header(ID_HEADER[self.format]))
            for m in self.admin.received(self.stream, n)
        ]

    def refused_claim(self) -> Claim:
        return make_claim(b"x" * 1_100_000)

    def break_down(self) -> None:
        self.publisher.probe()  # connected, as it is in the middle of a run
        self.server.pause()


@pytest.fixture
def target(
    request: pytest.FixtureRequest, frozen_nats: Nats, admin: Admin, make_publisher: MakePublisher
) -> Target:
    format, in_order, atomic, deduplicate = request.param
    stream, name = admin.make(), request.node.name
    publisher = make_publisher(
        subject=f"{stream}.{{event_type}}",
        in_order=in_order,
        timeout=2 if "tc_15" in name or "does_not_answer" in name else 20,
        format=format,
        atomic=atomic,
        deduplicate=deduplicate,
    )
    return NatsTarget(publisher, frozen_nats, admin, stream, format, deduplicate)


@pytest.mark.parametrize(
    "target",
    [
        ("Raw", False, "Auto", True),
        ("CloudEvents", False, "Auto", False),
        ("Debezium", False, "Never", True),
        ("Raw", True, "Auto", True),
        ("Raw", True, "Never", True),
    ],
    ids=["Raw", "CloudEvents", "Debezium", "Raw in order", "Raw in order without atomic batches"],
    indirect=True,
)
class TestNats(PublisherContract):
    pass

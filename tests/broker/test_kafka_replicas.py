"""Two brokers of their own: what an acknowledgement of all in-sync replicas is worth."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from conformance.publisher_contract import make_claim
from outbox_relay.contract.settings import Kafka as KafkaSettings
from outbox_relay.model.attempt import Acked, ErrorClass, Refused
from outbox_relay.publishers.kafka import KafkaPublisher
from outbox_relay.publishers.kafka_check import check_kafka
from services import Kafka, wait_until
from services.process import free_port

pytestmark = [pytest.mark.kafka, pytest.mark.slow]


class SecondBroker(Kafka):
    """A broker without a controller; its folder is formatted for the first one's cluster."""

    def __init__(self, folder: Path, first: Kafka) -> None:
        port = free_port()
        super().__init__(
            folder,
            {
                "process.roles": "broker",
                "node.id": "2",
                "controller.quorum.voters": f"1@127.0.0.1:{first._controller_port}",
                "listeners": f"PLAIN://127.0.0.1:{port}",
            },
        )
        self.port = port
        self._first = first

    def _prepare(self) -> None:
        super()._prepare()
        ours, theirs = (b.folder / "data" / "meta.properties" for b in (self, self._first))
        lines = [line for line in ours.read_text().splitlines() if "cluster.id" not in line]
        lines += [line for line in theirs.read_text().splitlines() if "cluster.id" in line]
        ours.write_text("\n".join(lines) + "\n")


@pytest.fixture
def brokers(server_folder: Path) -> Iterator[tuple[Kafka, Kafka]]:
    with (
        Kafka(server_folder / "first-of-two") as first,
        SecondBroker(server_folder / "second-of-two", first) as second,
    ):
        yield first, second


def test_oo_21_without_enough_in_sync_replicas_nothing_is_acknowledged(
    brokers: tuple[Kafka, Kafka],
) -> None:
    first, second = brokers
    admin = AdminClient({"bootstrap.servers": first.bootstrap})

    def in_sync() -> int:
        return len(admin.list_topics("orders", timeout=5).topics["orders"].partitions[0].isrs)

    wait_until(lambda: len(admin.list_topics(timeout=5).brokers) == 2, 30, "two brokers")
    new = NewTopic("orders", 1, replication_factor=2, config={"min.insync.replicas": "2"})
    admin.create_topics([new])["orders"].result(timeout=30)
    wait_until(lambda: in_sync() == 2, 30, "two in-sync replicas")
    settings = KafkaSettings(
        bootstrap_servers=first.bootstrap, topic="orders", delivery_timeout=timedelta(seconds=4)
    )
    publisher = KafkaPublisher(settings, in_order=False)
    assert isinstance(publisher.publish([make_claim()])[0], Acked)

    second.kill()
    wait_until(lambda: in_sync() == 1, 60, "one in-sync replica")
    (outcome,) = publisher.publish([make_claim()])
    assert isinstance(outcome, Refused)
    assert outcome.error.kind is ErrorClass.OUTAGE
    findings = check_kafka(settings, ["orders"])
    assert any(level == "fail" and "in-sync replicas" in text for level, text in findings)
    publisher.close(timedelta(0))

"""Two brokers of their own: what an acknowledgement of all in-sync replicas is worth."""

from datetime import timedelta

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from conformance.publisher_contract import make_claim
from dev.services import Kafka, wait_until
from outbox_core.contract.publishers.kafka import KafkaSettings
from outbox_core.model.attempt import Acked, ErrorClass, Refused
from outbox_relay.publishers.kafka.check import check_kafka
from outbox_relay.publishers.kafka.publisher import KafkaPublisher

pytestmark = [pytest.mark.kafka, pytest.mark.slow]


def test_oo_21_without_enough_in_sync_replicas_nothing_is_acknowledged(
    brokers: tuple[Kafka, Kafka],
) -> None:
    first, second = brokers
    admin = AdminClient({"bootstrap.servers": first.bootstrap})

    def in_sync() -> int:
        try:
            partitions = admin.list_topics("orders", timeout=5).topics["orders"].partitions
        except KafkaException:  # it asked the broker that was killed
            return 0
        return len(partitions[0].isrs) if partitions else 0  # a new topic has none for a moment

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
    assert any(f.level == "fail" and "in-sync replicas" in f.text for f in findings)
    publisher.close(timedelta(0))

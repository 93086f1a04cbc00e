"""Apache Kafka, or a broker that speaks its protocol. `registry` calls these two functions."""

from outbox_core.contract.publishers.kafka import KafkaSettings
from outbox_relay.publishers.kafka.config import check_extras
from outbox_relay.publishers.kafka.messages import topic_template
from outbox_relay.publishers.kafka.publisher import KafkaPublisher
from outbox_relay.publishers.protocol import Publisher


def make(settings: KafkaSettings, in_order: bool) -> Publisher:
    return KafkaPublisher(settings, in_order)


def validate(settings: KafkaSettings) -> None:
    topic_template(settings)
    check_extras(settings)

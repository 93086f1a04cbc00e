"""Which publisher the settings ask for: the only place that knows them all."""

from outbox_core.contract.settings import RelaySettings
from outbox_relay.publishers.protocol import Publisher


def check_publisher(settings: RelaySettings) -> None:
    """Raise SettingsError for what the publisher would refuse; without connecting to anything."""
    assert settings.publisher.kafka is not None  # validated: exactly one
    from outbox_relay.publishers.kafka_config import check_extras
    from outbox_relay.publishers.kafka_messages import parse_template

    parse_template(settings.publisher.kafka.topic)
    check_extras(settings.publisher.kafka)


def make_publisher(settings: RelaySettings) -> Publisher:
    assert settings.publisher.kafka is not None  # validated: exactly one
    # Imported here, so that a process loads the client of its own broker only.
    from outbox_relay.publishers.kafka import KafkaPublisher

    return KafkaPublisher(settings.publisher.kafka, in_order=settings.ordering == "Key")

"""NATS JetStream. `registry` calls these two functions."""

from outbox_core.contract.publishers.nats import NatsSettings
from outbox_relay.publishers.nats.address import address_of
from outbox_relay.publishers.nats.messages import subject_template
from outbox_relay.publishers.nats.publisher import NatsPublisher
from outbox_relay.publishers.protocol import Publisher


def make(settings: NatsSettings, in_order: bool) -> Publisher:
    validate(settings)
    return NatsPublisher(settings, in_order)


def validate(settings: NatsSettings) -> None:
    subject_template(settings)
    for server in settings.servers:
        address_of(server)

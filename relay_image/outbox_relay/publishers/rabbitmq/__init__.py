"""RabbitMQ, by AMQP 0-9-1. `registry` calls these two functions."""

from outbox_core.contract.publishers.rabbitmq import RabbitMQSettings
from outbox_core.errors import SettingsError
from outbox_relay.publishers.protocol import Publisher
from outbox_relay.publishers.rabbitmq.login import addresses
from outbox_relay.publishers.rabbitmq.messages import longer_than_a_name, routing_key_template
from outbox_relay.publishers.rabbitmq.publisher import RabbitMQPublisher


def make(settings: RabbitMQSettings, in_order: bool) -> Publisher:
    # In order or not is the same here: `route` promises nothing, so the relay sends one event of
    # each key at a time.
    return RabbitMQPublisher(settings)


def validate(settings: RabbitMQSettings) -> None:
    routing_key_template(settings)
    addresses(settings)
    for field, name in (("vhost", settings.vhost), ("exchange", settings.exchange)):
        if why := longer_than_a_name(name):
            raise SettingsError(f"rabbitmq.{field}: {why}")

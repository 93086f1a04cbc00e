"""Redis Streams. `registry` calls these two functions."""

from outbox_core.contract.publishers.redis import RedisSettings
from outbox_relay.publishers.protocol import Publisher
from outbox_relay.publishers.redis.entries import stream_template
from outbox_relay.publishers.redis.publisher import RedisPublisher
from outbox_relay.publishers.redis.wire import Address


def make(settings: RedisSettings, in_order: bool) -> Publisher:
    return RedisPublisher(settings, in_order)


def validate(settings: RedisSettings) -> None:
    stream_template(settings)
    Address.of(settings)

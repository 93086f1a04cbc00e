"""The fixtures of `publishers`, for all tests of this folder."""

from broker.rabbitmq.publishers import (
    broker,
    frozen_rabbitmq,
    make_publisher,
    mortal_rabbitmq,
    queue,
    rabbitmq,
)

__all__ = ["broker", "frozen_rabbitmq", "make_publisher", "mortal_rabbitmq", "queue", "rabbitmq"]

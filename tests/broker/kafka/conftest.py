"""The fixtures of `publishers`, for all tests of this folder."""

from broker.kafka.publishers import frozen_broker, make_publisher, mortal_broker

__all__ = ["frozen_broker", "make_publisher", "mortal_broker"]

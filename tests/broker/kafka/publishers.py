"""Publishers to test, closed when their test ends."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Protocol

import pytest

from dev.services import Kafka
from outbox_core.contract.publishers.kafka import KafkaSettings
from outbox_relay.publishers.kafka.publisher import KafkaPublisher


class MakePublisher(Protocol):
    def __call__(
        self, topic: str, *, in_order: bool = False, timeout: float = 20, **settings: Any
    ) -> KafkaPublisher:
        """A publisher of the test broker with these settings."""


@pytest.fixture
def make_publisher(kafka: Kafka) -> Iterator[MakePublisher]:
    made: list[KafkaPublisher] = []

    def make(
        topic: str, *, in_order: bool = False, timeout: float = 20, **settings: Any
    ) -> KafkaPublisher:
        filled = {
            "bootstrap_servers": kafka.bootstrap,
            "topic": topic,
            "delivery_timeout": timedelta(seconds=timeout),
            **settings,
        }
        publisher = KafkaPublisher(KafkaSettings(**filled), in_order)
        made.append(publisher)
        return publisher

    yield make
    for publisher in made:
        publisher.close(timedelta(seconds=1))


@pytest.fixture
def frozen_broker(kafka: Kafka) -> Iterator[Kafka]:
    """A broker that the test may `pause()`; it goes on afterwards."""
    yield kafka
    kafka.resume()


@pytest.fixture
def mortal_broker(kafka: Kafka) -> Iterator[Kafka]:
    """A broker that the test may stop or kill; it is started again afterwards."""
    yield kafka
    kafka.start()

"""RabbitMQ for tests: publishers, closed when their test ends, and another client behind them."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

import amqp
import pytest

from dev.services import RabbitMQ
from dev.services.rabbitmq import USER
from outbox_core.contract.publishers.rabbitmq import RabbitMQSettings
from outbox_relay.publishers.rabbitmq.publisher import RabbitMQPublisher


@pytest.fixture(scope="session")
def rabbitmq(server_folder: Path) -> Iterator[RabbitMQ]:
    with RabbitMQ(server_folder / "rabbitmq") as server:
        yield server


@pytest.fixture
def frozen_rabbitmq(rabbitmq: RabbitMQ) -> Iterator[RabbitMQ]:
    """The test may `pause()` it; it goes on afterwards."""
    yield rabbitmq
    rabbitmq.resume()


@pytest.fixture
def mortal_rabbitmq(rabbitmq: RabbitMQ) -> Iterator[RabbitMQ]:
    """The test may kill it; it is started again afterwards."""
    yield rabbitmq
    rabbitmq.start()


class MakePublisher(Protocol):
    def __call__(
        self, routing_key: str, *, timeout: float = 20, user: str = USER, **settings: Any
    ) -> RabbitMQPublisher:
        """A publisher to the test's server with these settings."""


@pytest.fixture
def make_publisher(
    rabbitmq: RabbitMQ, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[MakePublisher]:
    made: list[RabbitMQPublisher] = []
    password = tmp_path / "password"
    password.write_text(rabbitmq.password + "\n")

    def make(
        routing_key: str, *, timeout: float = 20, user: str = USER, **settings: Any
    ) -> RabbitMQPublisher:
        monkeypatch.setenv(f"RABBITMQ_USER_{user}", user)
        filled = {
            "hosts": rabbitmq.host,
            "routing_key": routing_key,
            "delivery_timeout": timedelta(seconds=timeout),
            "username": {"env": f"RABBITMQ_USER_{user}"},
            "password": {"file": password},
            **settings,
        }
        publisher = RabbitMQPublisher(RabbitMQSettings(**filled))
        made.append(publisher)
        return publisher

    yield make
    for publisher in made:
        publisher.close(timedelta(seconds=1))


@dataclass
class Broker:
    """Another client: it makes what a publisher needs, and reads what arrived."""

    server: RabbitMQ

    def connect(self, vhost: str = "/") -> amqp.Connection:
        connection = amqp.Connection(
            self.server.host, USER, self.server.password, virtual_host=vhost, connect_timeout=20
        )
        connection.connect()
        return connection

    def queue(self, vhost: str = "/", arguments: dict[str, Any] | None = None) -> str:
        name = f"queue-{uuid4()}"
        with self.connect(vhost) as connection:
            connection.channel().queue_declare(
                name, durable=True, auto_delete=False, arguments=arguments
            )
        return name

    def exchange(self, kind: str = "topic", **bindings: str) -> str:
        """With a queue bound to it for each routing key."""
        name = f"exchange-{uuid4()}"
        with self.connect() as connection:
            channel = connection.channel()
            channel.exchange_declare(name, kind, durable=True, auto_delete=False)
            for queue, key in bindings.items():
                channel.queue_bind(queue, name, key)
        return name

    def read(self, queue: str, n: int = 0, vhost: str = "/") -> list[Any]:
        """Wait for n messages, return all that there are; they stay."""
        deadline = time.monotonic() + 20
        while len(found := self._all(queue, vhost)) < n:
            assert time.monotonic() < deadline, f"{len(found)} of {n} messages"
        return found

    def _all(self, queue: str, vhost: str) -> list[Any]:
        with self.connect(vhost) as connection:
            channel = connection.channel()
            return list(iter(lambda: channel.basic_get(queue), None))


@pytest.fixture
def broker(rabbitmq: RabbitMQ) -> Broker:
    return Broker(rabbitmq)


@pytest.fixture
def queue(broker: Broker) -> str:
    return broker.queue()

"""
RabbitMQ: an exchange with one queue for each measurement, durable; quorum or classic.

The server stamps no message, so the first and the last arrival are known as closely as the size of
the queue is asked for.
"""

import time
from array import array
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import amqp

from bench.destinations.base import Arrival, Destination, Inbox, Receiver, Sink
from bench.workload import number_of
from dev.services import RabbitMQ
from dev.services.rabbitmq import USER

READ_TIMEOUT_SECONDS = 60.0


class QuorumQueues(Destination):
    check_every_seconds = 0.05
    queue_type: ClassVar[str] = "quorum"

    def _start(self, folder: Path, stack: ExitStack) -> RabbitMQ:
        server = stack.enter_context(RabbitMQ(folder / "rabbitmq"))
        self._server = server
        self._secrets = {"username": folder / "username", "password": folder / "password"}
        self._secrets["username"].write_text(USER)
        self._secrets["password"].write_text(server.password)
        self._channel = connect(server.host, server.password).channel()
        return server

    def create(self, name: str) -> None:
        self._channel.exchange_declare(name, "direct", durable=True, auto_delete=False)
        self._channel.queue_declare(
            name, durable=True, auto_delete=False, arguments={"x-queue-type": self.queue_type}
        )
        self._channel.queue_bind(name, name, name)

    def delete(self, name: str) -> None:
        self._channel.queue_delete(name)
        self._channel.exchange_delete(name)

    def size(self, name: str) -> int:
        return int(self._channel.queue_declare(name, passive=True).message_count)

    def read(self, name: str) -> Iterator[Arrival]:
        found: list[Arrival] = []
        left = self.size(name)
        with connect(self._server.host, self._server.password) as connection:
            channel = connection.channel()
            channel.basic_consume(
                name,
                no_ack=True,
                callback=lambda m: found.append(Arrival(number_of(body_of(m)), 0)),
            )
            while len(found) < left:
                connection.drain_events(timeout=READ_TIMEOUT_SECONDS)
        yield from found

    def receiver(self, name: str) -> Receiver:
        self._channel.queue_purge(name)
        return partial(receive, self._server.host, self._server.password, name)

    def publisher(self, name: str) -> Mapping[str, Any]:
        login = {key: {"file": str(path)} for key, path in self._secrets.items()}
        hosts = self._server.host
        return {"rabbitmq": {"hosts": hosts, "exchange": name, "routingKey": name, **login}}

    def sink(self, name: str) -> Sink:
        return Sink(
            "rabbitmq",
            {
                "connection.host": "127.0.0.1",
                "connection.port": str(self._server.port),
                "connection.username": USER,
                "connection.password": self._server.password,
                "exchange": name,
                "routingKey": name,
            },
        )


class ClassicQueues(QuorumQueues):
    queue_type = "classic"


def connect(host: str, password: str) -> amqp.Connection:
    connection = amqp.Connection(host, USER, password, connect_timeout=20)
    connection.connect()
    return connection


def body_of(message: Any) -> bytes:
    body = message.body
    return body if isinstance(body, bytes) else str(body).encode()


def receive(
    host: str, password: str, queue: str, first: int, events: int, until_ns: int
) -> "array[int]":
    inbox = Inbox(first, events)

    def take(message: Any) -> None:
        inbox.add(number_of(body_of(message)), time.monotonic_ns())

    with connect(host, password) as connection:
        channel = connection.channel()
        channel.basic_consume(queue, no_ack=True, callback=take)
        while inbox.missing and time.monotonic_ns() < until_ns:
            try:
                connection.drain_events(timeout=0.2)
            except TimeoutError:
                continue
    return inbox.received

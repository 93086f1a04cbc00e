"""A server that lets everybody in and then follows a script: what no real one does on demand."""

import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import count
from typing import Any

from fixtures.peers import listening
from outbox_core.contract.publishers.rabbitmq import RabbitMQSettings
from outbox_relay.publishers.rabbitmq import wire
from outbox_relay.publishers.rabbitmq.publisher import RabbitMQPublisher

TUNE = struct.pack(">HIH", 1, 131_072, 0)


class Peer:
    def __init__(self, client: socket.socket, number: int) -> None:
        self.number = number
        """Of this connection, from 0."""
        self._client = client
        self._reader = client.makefile("rb")

    def say(self, *frames: bytes) -> None:
        self._client.sendall(b"".join(frames))

    def hear(self) -> wire.Frame:
        head = self._reader.read(wire.FRAME.size)
        if len(head) < wire.FRAME.size:
            raise OSError("it has hung up")
        kind, channel, size = wire.FRAME.unpack(head)
        return wire.Frame(kind, channel, self._reader.read(size + 1)[:-1])

    def let_in(self, tune: bytes = TUNE) -> None:
        self._reader.read(len(wire.PROTOCOL))
        tables = b"\x00\x09" + wire.table(()) + wire.long_string(b"PLAIN") * 2
        self.say(wire.method_frame(0, wire.START, tables))
        self.hear()
        self.say(wire.method_frame(0, wire.TUNE, tune))
        self.hear()
        self.hear()
        self.say(wire.method_frame(0, wire.OPEN_OK, b"\x00"))
        self.hear()
        self.say(wire.method_frame(wire.CHANNEL, wire.CHANNEL_OPEN_OK, b"\x00" * 4))
        self.hear()
        self.say(wire.method_frame(wire.CHANNEL, wire.CONFIRM_SELECT_OK))

    def take_messages(self, n: int = 1) -> None:
        for _ in range(3 * n):
            while self.hear().type == wire.HEARTBEAT:
                pass

    def stay(self) -> None:
        """Until the publisher hangs up."""
        while self._client.recv(1 << 16):
            pass


def frame(kind: int, payload: bytes, channel: int = wire.CHANNEL) -> bytes:
    return wire.FRAME.pack(kind, channel, len(payload)) + payload + wire.END


def ack(tag: int, *, multiple: bool = False, channel: int = wire.CHANNEL) -> bytes:
    return wire.method_frame(channel, wire.ACK, wire.TAG.pack(tag, multiple))


def channel_closed(code: int, text: bytes) -> bytes:
    why = struct.pack(">HB", code, len(text)) + text + struct.pack(">HH", *wire.PUBLISH)
    return wire.method_frame(wire.CHANNEL, wire.CHANNEL_CLOSE, why)


@contextmanager
def publisher_to(
    script: Callable[[Peer], None], *, timeout: float = 2, **settings: Any
) -> Iterator[RabbitMQPublisher]:
    """A publisher whose every connection meets this script."""
    numbers = count()  # each is taken once, whatever threads do meanwhile

    def serve(client: socket.socket) -> None:
        script(Peer(client, next(numbers)))

    with listening(serve) as host:
        filled = {"hosts": host, "delivery_timeout": timedelta(seconds=timeout), **settings}
        publisher = RabbitMQPublisher(RabbitMQSettings(**filled))
        try:
            yield publisher
        finally:
            publisher.close(timedelta(0))

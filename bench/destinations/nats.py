"""
NATS JetStream: a stream with one subject for each measurement, on a disk that has every message
before it is acknowledged (`sync_interval: always`).

Read by a push consumer over a socket of our own; the server stamps every message.
"""

import itertools
import json
import os
import socket
import time
from array import array
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from bench.destinations.base import Arrival, Destination, Inbox, Receiver, Sink
from bench.workload import number_of
from dev.services import Nats

SLOW_CONSUMER_BYTES = 1 << 30
"""By default a reader that is 64 MB behind is thrown out."""
HEARTBEAT_NS = 500_000_000
TIMEOUT_SECONDS = 30.0
DEBEZIUM_TIMEOUT_MS = 60_000
"""Of a whole batch. By default 5 s, in which a batch of 8192 is not yet on the disk."""


class NatsStreams(Destination):
    warm_up_events = 5_000

    def _start(self, folder: Path, stack: ExitStack) -> Nats:
        nats = stack.enter_context(Nats(folder / "nats", {"max_pending": SLOW_CONSUMER_BYTES}))
        self.url = nats.url
        self._port = nats.port
        self._client = Client(nats.port)
        return nats

    def create(self, name: str) -> None:
        self._client.ask(
            f"STREAM.CREATE.{name}",
            {
                **{"name": name, "subjects": [name], "storage": "file", "num_replicas": 1},
                **{"duplicate_window": 120_000_000_000, "allow_atomic": True},
            },
        )

    def delete(self, name: str) -> None:
        self._client.ask(f"STREAM.DELETE.{name}")

    def size(self, name: str) -> int:
        return int(self._state(name)["messages"])

    def read(self, name: str) -> Iterator[Arrival]:
        left = self.size(name)
        for message in Client(self._port).deliveries(name, 1):
            if message is not None:
                yield Arrival(number_of(message.payload), message.at)
                left -= 1
            if not left:
                return

    def receiver(self, name: str) -> Receiver:
        return partial(receive, self._port, name, int(self._state(name)["last_seq"]) + 1)

    def publisher(self, name: str) -> Mapping[str, Any]:
        return {"nats": {"servers": [self.url], "subject": name}}

    def sink(self, name: str) -> Sink:
        settings = {"async.enabled": "true", "async.timeout.ms": str(DEBEZIUM_TIMEOUT_MS)}
        return Sink("nats-jetstream", {"url": self.url, "stream-name": name, **settings})

    def _state(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self._client.ask(f"STREAM.INFO.{name}")["state"]
        return found


class Message(NamedTuple):
    payload: bytes
    reply: bytes

    @property
    def at(self) -> float:
        """The last but one part of $JS.ACK.<stream>.<consumer>.<counts>.<nanoseconds>.<pending>"""
        return int(self.reply.split(b".")[-2]) / 1e9


class Client:
    """As much of the protocol as reading takes."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_SECONDS)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._lines = self._socket.makefile("rb", 1 << 20)
        self._inbox = f"_INBOX.{os.urandom(8).hex()}"
        self._numbers = itertools.count()
        self._lines.readline()  # INFO
        options = json.dumps({"verbose": False, "headers": True, "no_responders": True})
        self._socket.sendall(f"CONNECT {options}\r\nSUB {self._inbox}.* 1\r\n".encode())

    def ask(self, what: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        self._send(what, body)
        answer: dict[str, Any] = json.loads(next(self._messages()).payload)
        if "error" in answer:
            raise RuntimeError(f"{what}: {answer['error']}")
        return answer

    def deliveries(self, stream: str, first_seq: int) -> Iterator[Message | None]:
        """From there on, as they come; None at times, if there is none. Ends with the process."""
        subject = f"_DELIVER.{os.urandom(8).hex()}"  # by name: a wildcard is no interest here
        config = {
            **{"deliver_subject": subject, "ack_policy": "none", "idle_heartbeat": HEARTBEAT_NS},
            **{"deliver_policy": "by_start_sequence", "opt_start_seq": first_seq},
        }
        self._socket.sendall(f"SUB {subject} 2\r\n".encode())
        self._send(f"CONSUMER.CREATE.{stream}", {"stream_name": stream, "config": config})
        for message in self._messages():
            yield message if message.reply.startswith(b"$JS.ACK.") else None

    def _send(self, what: str, body: Mapping[str, Any] | None) -> None:
        inbox = f"{self._inbox}.{next(self._numbers)}"
        text = json.dumps(body or {})
        self._socket.sendall(f"PUB $JS.API.{what} {inbox} {len(text)}\r\n{text}\r\n".encode())

    def _messages(self) -> Iterator[Message]:
        while line := self._lines.readline():
            verb, *words = line.split()
            if verb == b"PING":
                self._socket.sendall(b"PONG\r\n")
            elif verb in (b"MSG", b"HMSG"):
                sizes = 1 if verb == b"MSG" else 2
                head = int(words[-2]) if sizes == 2 else 0
                body = self._lines.read(int(words[-1]) + 2)[head:-2]
                yield Message(body, words[2] if len(words) == 3 + sizes else b"")
            elif verb == b"-ERR":
                raise RuntimeError(line.decode())
        raise RuntimeError("NATS has closed the connection")


def receive(
    port: int, stream: str, first_seq: int, first: int, events: int, until_ns: int
) -> "array[int]":
    inbox = Inbox(first, events)
    for message in Client(port).deliveries(stream, first_seq):
        now = time.monotonic_ns()
        if message is not None:
            inbox.add(number_of(message.payload), now)
        if not inbox.missing or now > until_ns:
            break
    return inbox.received

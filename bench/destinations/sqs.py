"""
SQS: a standard queue of ElasticMQ for each measurement, in memory.

Its own limit is measured too: requests that are ready as bytes, ten messages in each, sent over as
many connections as ours has, by a program that does nothing else.
"""

import json
import socket
import time
from array import array
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

from bench.destinations.base import Arrival, Destination, Inbox, Receiver, Sink
from bench.workload import number_of, payload_of
from dev.services import ElasticMq
from dev.services.kafka import LONG_RUN

REGION = "eu-west-1"
CONNECTIONS = 16
BATCH = 10
"""The most that a request may hold."""
WARM_UP_SECONDS = 15.0
HIDDEN_SECONDS = "3600"
"""So long a message that was read is not read again."""


class SqsQueues(Destination):
    check_every_seconds = 0.5
    warm_up_events = 5_000

    def _start(self, folder: Path, stack: ExitStack) -> ElasticMq:
        self._elasticmq = stack.enter_context(ElasticMq(folder / "elasticmq", jvm=LONG_RUN))
        self._connection = Connection(self._elasticmq.port)
        self._keys = {"accessKeyId": folder / "id", "secretAccessKey": folder / "secret"}
        for path in self._keys.values():
            path.write_text("bench")
        self.limit(WARM_UP_SECONDS)  # it compiles its hot code now
        return self._elasticmq

    def create(self, name: str) -> None:
        attributes = {"VisibilityTimeout": HIDDEN_SECONDS}
        self._connection.ask("CreateQueue", {"QueueName": name, "Attributes": attributes})

    def delete(self, name: str) -> None:
        self._connection.ask("DeleteQueue", {"QueueUrl": self._url(name)})

    def size(self, name: str) -> int:
        asked = {"QueueUrl": self._url(name), "AttributeNames": ["ApproximateNumberOfMessages"]}
        attributes = self._connection.ask("GetQueueAttributes", asked)["Attributes"]
        return int(attributes["ApproximateNumberOfMessages"])

    def read(self, name: str) -> Iterator[Arrival]:
        return iter(messages(self._elasticmq.port, self._url(name)))

    def receiver(self, name: str) -> Receiver:
        self._connection.ask("PurgeQueue", {"QueueUrl": self._url(name)})
        return partial(receive, self._elasticmq.port, self._url(name))

    def publisher(self, name: str) -> Mapping[str, Any]:
        keys = {key: {"file": str(path)} for key, path in self._keys.items()}
        return {"sqs": {"queueUrl": self._url(name), "region": REGION, **keys}}

    def sink(self, name: str) -> Sink:
        url = self._url(name)
        keys = ("-Daws.accessKeyId=bench", "-Daws.secretAccessKey=bench")
        settings = {"region": REGION, "endpoint": self._elasticmq.url, "queue.url": url}
        return Sink("sqs", settings, text=True, java=keys)

    def limit(self, seconds: float) -> float:
        """Messages per second that it takes when nothing else runs."""
        self.create("limit")
        end = time.monotonic() + seconds
        with ThreadPoolExecutor(CONNECTIONS) as pool:
            sending = [
                pool.submit(send_until, self._elasticmq.port, self._url("limit"), end)
                for _ in range(CONNECTIONS)
            ]
            sent = sum(future.result() for future in sending)
        self.delete("limit")
        return sent / seconds

    def _url(self, name: str) -> str:
        return self._elasticmq.queue_url(name)


class Connection:
    """The protocol as bytes: the client must not be what limits."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._answers = self._socket.makefile("rb")

    def request(self, action: str, body: Mapping[str, Any]) -> bytes:
        text = json.dumps(body).encode()
        head = (
            f"POST / HTTP/1.1\r\nHost: 127.0.0.1:{self._port}\r\n"
            f"X-Amz-Target: AmazonSQS.{action}\r\nContent-Type: application/x-amz-json-1.0\r\n"
            f"Content-Length: {len(text)}\r\n\r\n"
        )
        return head.encode() + text

    def exchange(self, request: bytes) -> bytes:
        self._socket.sendall(request)
        status = self._answers.readline()
        length = 0
        while (line := self._answers.readline()) not in (b"\r\n", b""):
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
        body = self._answers.read(length)
        if b" 200 " not in status:
            raise RuntimeError(f"ElasticMQ: {status.decode().strip()}: {body.decode()}")
        return body

    def ask(self, action: str, body: Mapping[str, Any]) -> dict[str, Any]:
        answer = self.exchange(self.request(action, body))
        found: dict[str, Any] = json.loads(answer) if answer else {}
        return found


def send_until(port: int, url: str, end: float) -> int:
    connection = Connection(port)
    entries = [{"Id": str(n), **message(n)} for n in range(BATCH)]
    request = connection.request("SendMessageBatch", {"QueueUrl": url, "Entries": entries})
    sent = 0
    while time.monotonic() < end:
        connection.exchange(request)
        sent += BATCH
    return sent


def message(n: int) -> Mapping[str, Any]:
    """With the headers that ours has."""
    headers = {
        "outbox-event-id": str(uuid4()),
        "outbox-event-type": "bench.happened",
        "outbox-attempt": "1",
        "outbox-created-at": "2026-11-17T12:00:00.000000Z",
    }
    attributes = {
        name: {"DataType": "String", "StringValue": value} for name, value in headers.items()
    }
    return {"MessageBody": payload_of(n).decode(), "MessageAttributes": attributes}


def messages(port: int, url: str) -> Sequence[Arrival]:
    connection = Connection(port)
    request = connection.request(
        "ReceiveMessage",
        {"QueueUrl": url, "MaxNumberOfMessages": BATCH, "AttributeNames": ["SentTimestamp"]},
    )
    found: list[Arrival] = []
    while batch := json.loads(connection.exchange(request)).get("Messages"):
        for held in batch:
            at = int(held["Attributes"]["SentTimestamp"]) / 1000
            found.append(Arrival(number_of(held["Body"].encode()), at))
    return found


def receive(port: int, url: str, first: int, events: int, until_ns: int) -> "array[int]":
    """Reads when all are there: the server has stamped them."""
    connection = Connection(port)
    asked = {"QueueUrl": url, "AttributeNames": ["ApproximateNumberOfMessages"]}
    while time.monotonic_ns() < until_ns:
        attributes = connection.ask("GetQueueAttributes", asked)["Attributes"]
        if int(attributes["ApproximateNumberOfMessages"]) >= events:
            break
        time.sleep(1)
    return Inbox(first, events).add_stamped(messages(port, url)).received

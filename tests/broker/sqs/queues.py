"""Queues as another client sees them: botocore's own."""

import itertools
import json
import os
import time
from dataclasses import dataclass
from typing import Any

from botocore.config import Config
from botocore.session import Session

from dev.services import ElasticMq

NUMBERS = itertools.count(1)


@dataclass(frozen=True)
class Message:
    raw: dict[str, Any]

    @property
    def attributes(self) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = self.raw.get("MessageAttributes", {})
        return found

    def value(self, name: str) -> str | bytes:
        attribute = self.attributes[name]
        found: str | bytes = attribute.get("StringValue") or attribute["BinaryValue"]
        return found

    @property
    def payload(self) -> bytes:
        """As docs/publishers/sqs.md tells consumers to find it."""
        held = self.attributes.get("outbox-payload")
        if held is None:
            return str(self.raw["Body"]).encode()
        return b"" if held["DataType"] == "String" else bytes(held["BinaryValue"])

    @property
    def headers(self) -> list[tuple[str, bytes | None]]:
        """Likewise."""
        found: list[tuple[str, str | None]] = []
        for name, attribute in self.attributes.items():
            if name == "outbox-headers":
                found += [(pair[0], pair[1]) for pair in json.loads(attribute["StringValue"])]
            elif name != "outbox-payload":
                found.append((name, attribute["StringValue"]))
        return [(name, None if value is None else value.encode()) for name, value in found]

    @property
    def group(self) -> str | None:
        group: str | None = self.raw.get("Attributes", {}).get("MessageGroupId")
        return group


class Queues:
    def __init__(self, server: ElasticMq) -> None:
        self._server = server
        self.client = Session().create_client(  # once: it takes half a second
            "sqs",
            region_name="eu-west-1",
            endpoint_url=server.url,
            aws_access_key_id="AKIDOTHER",
            aws_secret_access_key="other",
            config=Config(retries={"total_max_attempts": 1}, connect_timeout=5, read_timeout=25),
        )

    def make(self, fifo: bool = False, name: str | None = None, **attributes: str) -> str:
        """A new queue's URL."""
        name = name or f"q-{os.getpid()}-{next(NUMBERS)}"
        if fifo:
            name += ".fifo"
            attributes["FifoQueue"] = "true"
        self.client.create_queue(QueueName=name, Attributes=attributes)
        return self._server.queue_url(name)

    def received(self, url: str, n: int, timeout: float = 30) -> list[Message]:
        """Wait for n messages; return all that there are, and delete them."""
        found: list[Message] = []
        until = time.monotonic() + timeout
        while time.monotonic() < until:
            enough = len(found) >= n
            answer = self.client.receive_message(
                QueueUrl=url,
                MaxNumberOfMessages=10,
                MessageAttributeNames=["All"],
                AttributeNames=["All"],
                WaitTimeSeconds=0 if enough else 2,
                VisibilityTimeout=600,
            )
            batch = answer.get("Messages", [])
            if not batch and enough:
                break
            found += [Message(raw) for raw in batch]
            if batch:
                entries = [
                    {"Id": str(i), "ReceiptHandle": raw["ReceiptHandle"]}
                    for i, raw in enumerate(batch)
                ]
                self.client.delete_message_batch(QueueUrl=url, Entries=entries)
        return found

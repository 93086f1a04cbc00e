"""A fresh stream for each test, and reading what it holds, as the server stored it."""

import base64
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from dev.services import Nats, wait_until
from outbox_core.contract.publishers.nats import NatsSettings
from outbox_relay.publishers.nats.connection import Connection

NUMBERS = count(1)
NOT_FOUND = 10037
"""No message has that number."""


class NoAnswer(Exception):
    """JetStream says nothing, or that it cannot say."""


@dataclass(frozen=True)
class Stored:
    seq: int
    subject: str
    payload: bytes
    headers: list[tuple[str, bytes]]
    """In order, repetitions kept."""

    def header(self, name: str) -> str:
        (found,) = [value for key, value in self.headers if key == name]
        return found.decode()


@dataclass
class Admin:
    """Asks JetStream's API, whichever connection that takes."""

    server: Nats
    login: dict[str, Any] = field(default_factory=dict)
    patience_seconds: float = 20.0

    def ask(self, *asked: tuple[str, object]) -> list[dict[str, Any]]:
        settings = NatsSettings(servers=(self.server.url,), **self.login)
        connection = Connection(settings, self.server.url, time.monotonic() + 10)
        try:
            replies = connection.request(
                [(f"$JS.API.{name}", body) for name, body in asked],
                time.monotonic() + self.patience_seconds,
            )
        finally:
            connection.close()
        answers = [json.loads(reply.body) for reply in replies if reply and not reply.status]
        if len(answers) < len(asked):
            raise NoAnswer(connection.why_lost)
        return answers

    def make(self, *subjects: str, **config: Any) -> str:
        """A stream with these subjects, or with all below a name of its own; its name."""
        name = f"s{next(NUMBERS)}"
        self.configure("CREATE", name, subjects or (f"{name}.>",), config)
        return name

    def configure(
        self, verb: str, name: str, subjects: tuple[str, ...], config: dict[str, Any]
    ) -> None:
        filled = {
            **{"name": name, "subjects": list(subjects), "storage": "file", "num_replicas": 1},
            **{"duplicate_window": 120_000_000_000, "allow_atomic": True},
            **config,
        }
        (answer,) = self.ask((f"STREAM.{verb}.{name}", filled))
        assert "error" not in answer, answer

    def delete(self, name: str) -> None:
        self.ask((f"STREAM.DELETE.{name}", None))

    def received(self, name: str, n: int = 0) -> list[Stored]:
        """Wait until the stream holds n messages; return all that it holds."""

        def state() -> dict[str, Any]:
            (answer,) = self.ask((f"STREAM.INFO.{name}", None))
            found = answer["state"]
            assert isinstance(found, dict)
            return found

        wait_until(lambda: state()["messages"] >= n, 20, f"{n} messages in {name}")
        now = state()
        return list(self._read(name, now["first_seq"], now["last_seq"]))

    def _read(self, name: str, first: int, last: int) -> Iterator[Stored]:
        for begin in range(max(1, first), last + 1, 500):
            seqs = range(begin, min(begin + 500, last + 1))
            asked = [(f"STREAM.MSG.GET.{name}", {"seq": seq}) for seq in seqs]
            for answer in self.ask(*asked):
                if (error := answer.get("error")) and error["err_code"] == NOT_FOUND:
                    continue  # deleted, or none was stored there
                if error:
                    raise NoAnswer(error)
                message = answer["message"]
                lines = base64.b64decode(message.get("hdrs", "")).split(b"\r\n")[1:-2]
                pairs = [line.partition(b": ")[::2] for line in lines]
                yield Stored(
                    message["seq"],
                    message["subject"],
                    base64.b64decode(message.get("data", "")),
                    [(key.decode(), value) for key, value in pairs],
                )

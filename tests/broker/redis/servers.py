"""Redis to test against, and publishers for it, closed when their test ends."""

import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

import pytest
import redis as client

from dev.services.redis import Redis
from outbox_core.contract.publishers.redis import RedisSettings
from outbox_relay.publishers.redis.publisher import RedisPublisher


class MakePublisher(Protocol):
    def __call__(
        self, stream: str, *, in_order: bool = False, timeout: float = 10, **settings: Any
    ) -> RedisPublisher:
        """A publisher of the test's server with these settings."""


@dataclass(frozen=True)
class Entry:
    """As redis-py reads it: a client that we have no part in."""

    id: str
    fields: dict[bytes, bytes]

    @property
    def headers(self) -> list[tuple[str, str | None]]:
        return [(name, value) for name, value in json.loads(self.fields[b"headers"])]

    @property
    def number(self) -> int:
        return int(self.fields[b"payload"])


def reader(server: Redis, **options: Any) -> client.Redis:
    return client.Redis(port=server.port, socket_timeout=5, **options)


def entries(server: Redis, stream: str, **options: Any) -> list[Entry]:
    with reader(server, **options) as conn:
        found: Any = conn.xrange(stream)
    return [Entry(entry_id.decode(), fields) for entry_id, fields in found]


@pytest.fixture(scope="session")
def redis(server_folder: Path) -> Iterator[Redis]:
    with Redis(server_folder / "redis") as server:
        yield server


@pytest.fixture
def server(redis: Redis) -> Iterator[Redis]:
    """One that the test may freeze or kill; it answers again afterwards."""
    yield redis
    if redis.running:
        redis.resume()
    redis.start()


@pytest.fixture
def stream() -> str:
    return f"s-{uuid.uuid4().hex}"


@pytest.fixture
def make_publisher(redis: Redis) -> Iterator[MakePublisher]:
    made: list[RedisPublisher] = []

    def make(
        stream: str, *, in_order: bool = False, timeout: float = 10, **settings: Any
    ) -> RedisPublisher:
        filled = {
            "url": redis.url,
            "stream": stream,
            "delivery_timeout": timedelta(seconds=timeout),
            **settings,
        }
        publisher = RedisPublisher(RedisSettings(**filled), in_order)
        made.append(publisher)
        return publisher

    yield make
    for publisher in made:
        publisher.close(timedelta(seconds=1))

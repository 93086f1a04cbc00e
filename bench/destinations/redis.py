"""
Redis: a stream for each measurement, on a server that writes its append-only file to the disk
before it answers (`appendfsync always`).
"""

import time
from array import array
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import redis

from bench.destinations.base import Arrival, Destination, Inbox, Receiver, Sink
from bench.workload import number_of
from dev.services import Redis

APPENDFSYNC = "always"
READ_AT_ONCE = 10_000
DEBEZIUM_BATCH = 4096
"""500 by default."""


class RedisStreams(Destination):
    def _start(self, folder: Path, stack: ExitStack) -> Redis:
        server = stack.enter_context(Redis(folder / "redis", {"appendfsync": APPENDFSYNC}))
        self._port = server.port
        self._client = stack.enter_context(redis.Redis(port=server.port))
        return server

    def create(self, name: str) -> None:
        pass  # the first entry does

    def delete(self, name: str) -> None:
        self._client.delete(name)

    def size(self, name: str) -> int:
        return int(self._client.xlen(name))

    def read(self, name: str) -> Iterator[Arrival]:
        after = b"0"
        while found := self._read_after(name, after):
            for entry_id, fields in found:
                after = entry_id
                yield Arrival(number_in(fields), int(entry_id.partition(b"-")[0]) / 1000)

    def receiver(self, name: str) -> Receiver:
        last: Any = self._client.xrevrange(name, count=1)
        return partial(receive, self._port, name, last[0][0] if last else b"0")

    def publisher(self, name: str) -> Mapping[str, Any]:
        return {"redis": {"url": f"redis://127.0.0.1:{self._port}", "stream": name}}

    def sink(self, name: str) -> Sink:
        address = f"127.0.0.1:{self._port}"
        return Sink("redis", {"address": address, "batch.size": str(DEBEZIUM_BATCH)}, text=True)

    def _read_after(self, name: str, after: bytes) -> Any:
        return self._client.xrange(name, b"(" + after, count=READ_AT_ONCE)


def number_in(fields: Mapping[bytes, bytes]) -> int:
    """Ours has a field `payload`; Debezium's compact layout one field, named after the key."""
    return number_of(fields.get(b"payload") or next(iter(fields.values())))


def receive(
    port: int, stream: str, after: bytes, first: int, events: int, until_ns: int
) -> "array[int]":
    inbox = Inbox(first, events)
    with redis.Redis(port=port) as client:
        while inbox.missing and time.monotonic_ns() < until_ns:
            found: Any = client.xread({stream: after}, block=200)
            now = time.monotonic_ns()
            for _, entries in found:
                for entry_id, fields in entries:
                    inbox.add(number_in(fields), now)
                    after = entry_id
    return inbox.received

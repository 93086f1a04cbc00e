"""
Topics: creating them, reading their size, and checking their contents afterwards.

The broker stamps each record when it appends it (LogAppendTime), so that the time of the first and
the last event is exact, and no consumer has to run while a drain is being measured.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec  # exported, but mypy is not told so
from confluent_kafka.cimpl import NewTopic  # the public module does not declare it

from bench.workload import key_of, number_of
from dev.services import wait_until
from dev.services.kafka import QUIET

LATEST = OffsetSpec.latest()  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class Contents:
    """The contents of a topic."""

    first_at: float
    last_at: float
    distinct: int
    duplicates: int
    violations: int
    """Events that arrived after a later event of their key, first deliveries only."""


class Topics:
    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._admin = AdminClient({"bootstrap.servers": bootstrap, **QUIET})
        self._known: dict[str, int] = {}

    def create(self, name: str, partitions: int) -> None:
        new = NewTopic(
            name, num_partitions=partitions, config={"message.timestamp.type": "LogAppendTime"}
        )
        self._admin.create_topics([new])[name].result(timeout=30)
        wait_until(lambda: self._has_leaders(name, partitions), 30, f"leaders of topic {name}")
        self._known[name] = partitions

    def delete(self, name: str) -> None:
        self._admin.delete_topics([name])[name].result(timeout=30)

    def ends(self, name: str) -> list[int]:
        """The end offset of each partition, in one request: polling is cheap for the broker."""
        asked = {TopicPartition(name, p): LATEST for p in range(self._known[name])}
        return [f.result(timeout=10).offset for f in self._admin.list_offsets(asked).values()]

    def size(self, name: str) -> int:
        return sum(self.ends(name))

    def contents(self, name: str, keys: int, skip: Sequence[int] = ()) -> Contents:
        """Read all of it, or everything after the offsets `skip`."""
        ends = self.ends(name)
        starts = list(skip) or [OFFSET_BEGINNING] * len(ends)
        consumer = Consumer(
            {"bootstrap.servers": self._bootstrap, "group.id": "bench-contents", **QUIET}
        )
        consumer.assign([TopicPartition(name, p, start) for p, start in enumerate(starts)])
        left = sum(ends) - sum(skip)
        seen: set[int] = set()
        newest: dict[int, int] = {}
        duplicates = violations = 0
        first, last = 2**63, 0
        deadline = time.monotonic() + 300
        while left > 0:
            if time.monotonic() > deadline:
                raise TimeoutError(f"topic {name}: {left} records could not be read")
            for message in consumer.consume(10_000, timeout=1):
                left -= 1
                value = message.value()
                assert value is not None
                at = message.timestamp()[1]
                first, last = min(first, at), max(last, at)
                n = number_of(value)
                if n in seen:
                    duplicates += 1
                    continue
                seen.add(n)
                key = key_of(n, keys)
                violations += n < newest.get(key, -1)
                newest[key] = max(n, newest.get(key, -1))
        consumer.close()
        return Contents(first / 1000, last / 1000, len(seen), duplicates, violations)

    def _has_leaders(self, name: str, partitions: int) -> bool:
        found = self._admin.list_topics(name, timeout=10).topics[name].partitions
        return len(found) == partitions and all(p.leader >= 0 for p in found.values())

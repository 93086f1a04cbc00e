"""
Kafka: a topic of six partitions for each measurement.

The broker stamps each record when it appends it (LogAppendTime), so that the time of the first and
the last event is exact, and no consumer has to run while a drain is being measured.
"""

import time
from array import array
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec  # exported, but mypy is not told so
from confluent_kafka.cimpl import NewTopic  # the public module does not declare it

from bench.destinations.base import Arrival, Destination, Inbox, Receiver, Sink
from bench.workload import number_of, payload_of
from dev.services import Kafka, wait_until
from dev.services.kafka import LONG_RUN, QUIET

LATEST = OffsetSpec.latest()  # type: ignore[no-untyped-call]
PARTITIONS = 6
READ_TIMEOUT_SECONDS = 300.0
WARM_UP_EVENTS = 600_000
WARM_UP_SINGLE_EVENTS = 10_000
HEADERS: list[tuple[str, str | bytes | None]] = [("a-header", "its value")] * 4


class KafkaTopics(Destination):
    def _start(self, folder: Path, stack: ExitStack) -> Kafka:
        kafka = stack.enter_context(Kafka(folder / "kafka", jvm=LONG_RUN))
        self.bootstrap = kafka.bootstrap
        self._admin = AdminClient({"bootstrap.servers": self.bootstrap, **QUIET})
        self._warm_up()
        return kafka

    def create(self, name: str) -> None:
        config = {"message.timestamp.type": "LogAppendTime"}
        new = NewTopic(name, num_partitions=PARTITIONS, config=config)
        self._admin.create_topics([new])[name].result(timeout=30)
        wait_until(lambda: self._has_leaders(name), 30, f"leaders of topic {name}")

    def delete(self, name: str) -> None:
        self._admin.delete_topics([name])[name].result(timeout=30)

    def size(self, name: str) -> int:
        return sum(self._ends(name))

    def read(self, name: str) -> Iterator[Arrival]:
        left = self.size(name)
        consumer = Consumer(
            {"bootstrap.servers": self.bootstrap, "group.id": "bench-contents", **QUIET}
        )
        partitions = range(PARTITIONS)
        consumer.assign([TopicPartition(name, p, OFFSET_BEGINNING) for p in partitions])
        deadline = time.monotonic() + READ_TIMEOUT_SECONDS
        while left > 0:
            if time.monotonic() > deadline:
                raise TimeoutError(f"topic {name}: {left} records could not be read")
            for message in consumer.consume(10_000, timeout=1):
                left -= 1
                value = message.value()
                assert value is not None
                yield Arrival(number_of(value), message.timestamp()[1] / 1000)
        consumer.close()

    def receiver(self, name: str) -> Receiver:
        return partial(consume, self.bootstrap, name, self._ends(name))

    def publisher(self, name: str) -> Mapping[str, Any]:
        return {"kafka": {"bootstrapServers": self.bootstrap, "topic": name}}

    def sink(self, name: str) -> Sink:
        strings = "org.apache.kafka.common.serialization.StringSerializer"
        bytes_ = "org.apache.kafka.common.serialization.ByteArraySerializer"
        return Sink(
            "kafka",
            {
                "producer.bootstrap.servers": self.bootstrap,
                "producer.acks": "all",
                "producer.key.serializer": strings,
                "producer.value.serializer": bytes_,
            },
        )

    def _ends(self, name: str) -> list[int]:
        """The end offset of each partition, in one request: polling is cheap for the broker."""
        asked = {TopicPartition(name, p): LATEST for p in range(PARTITIONS)}
        return [f.result(timeout=10).offset for f in self._admin.list_offsets(asked).values()]

    def _has_leaders(self, name: str) -> bool:
        found = self._admin.list_topics(name, timeout=10).topics[name].partitions
        return len(found) == PARTITIONS and all(p.leader >= 0 for p in found.values())

    def _warm_up(self) -> None:
        """
        The broker's JVM compiles code while it works: the first measurement would pay for that.
        Measured: a first drain cost 18 microseconds per event, a seventh 9. So both kinds of work
        that follow, large requests and single events that a consumer waits for, are done until it
        has settled.
        """
        self.create("warm-up")
        producer = Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "enable.idempotence": True,
                "linger.ms": 0,
                **QUIET,
            }
        )
        for n in range(WARM_UP_EVENTS):
            while True:
                try:
                    producer.produce("warm-up", payload_of(n), key=b"%d" % n, headers=HEADERS)
                    break
                except BufferError:
                    producer.poll(0.1)
        producer.flush(60)
        until = time.monotonic_ns() + 120_000_000_000
        with ThreadPoolExecutor(1) as pool:
            reading = pool.submit(self.receiver("warm-up"), 0, WARM_UP_SINGLE_EVENTS, until)
            for n in range(WARM_UP_SINGLE_EVENTS):
                producer.produce("warm-up", payload_of(n), key=b"%d" % n)
                producer.flush(10)
            reading.result()
        self.delete("warm-up")
        time.sleep(5)  # it compiles its hot code now, while it works


def consume(
    bootstrap: str, topic: str, offsets: Sequence[int], first: int, events: int, until_ns: int
) -> "array[int]":
    inbox = Inbox(first, events)
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "bench", **QUIET})
    consumer.assign([TopicPartition(topic, p, offset) for p, offset in enumerate(offsets)])
    while inbox.missing and time.monotonic_ns() < until_ns:
        # One by one: consume(many) would hold back the first until there are many, or time out.
        message = consumer.poll(0.1)
        if message is None or message.error():
            continue
        now = time.monotonic_ns()
        value = message.value()
        assert value is not None
        inbox.add(number_of(value), now)
    consumer.close()
    return inbox.received

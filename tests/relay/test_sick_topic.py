"""One sick topic: its events wait and lose nothing, and nobody else waits with them."""

from collections.abc import Mapping

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from dev.services import Kafka, wait_until
from dev.services.kafka import QUIET
from fixtures.outbox import Outbox
from fixtures.relays import RelayProcess, StartRelay

pytestmark = [pytest.mark.pg, pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(180)]

SICK, LOST, WELL = 3000, 100, 300
RELAYS = {"none": "None", "key": "Key"}
"""Both at once, each with topics of its own: the brokers are what takes time."""

UNDER_REPLICATED = {"replica_assignment": [[1, 2]], "config": {"min.insync.replicas": "2"}}
ON_THE_SECOND_ALONE = {"replica_assignment": [[2]]}
ON_THE_FIRST = {"replica_assignment": [[1]]}


class Cluster:
    """Two brokers, and the topics of both relays on them."""

    def __init__(self, brokers: tuple[Kafka, Kafka]) -> None:
        self.first, self.second = brokers
        self.admin = AdminClient({"bootstrap.servers": self.first.bootstrap, **QUIET})
        wait_until(lambda: len(self.admin.list_topics(timeout=5).brokers) == 2, 30, "two brokers")
        kinds = {"sick": UNDER_REPLICATED, "lost": ON_THE_SECOND_ALONE, "well": ON_THE_FIRST}
        new = [
            NewTopic(f"{relay}-{kind}", num_partitions=1, **kinds[kind])  # type: ignore[arg-type]
            for relay in RELAYS
            for kind in kinds
        ]
        for future in self.admin.create_topics(new).values():
            future.result(timeout=30)
        wait_until(lambda: self._in_sync() == 2, 30, "two in-sync replicas")

    def _in_sync(self) -> int:
        topics = self.admin.list_topics(timeout=5).topics
        sick = [topics.get(f"{relay}-sick") for relay in RELAYS]
        # A new topic is not known everywhere at once, nor are its partitions.
        return min(len(t.partitions[0].isrs) if t and t.partitions else 0 for t in sick)

    def lose_the_second(self) -> None:
        self.second.kill()
        wait_until(lambda: self._in_sync() == 1, 60, "one in-sync replica")

    def count(self, topic: str) -> int:
        consumer = Consumer(
            {"bootstrap.servers": self.first.bootstrap, "group.id": "count", **QUIET}
        )
        try:
            _, high = consumer.get_watermark_offsets(TopicPartition(topic, 0), 10)
            return int(high)
        finally:
            consumer.close()


def load(outbox: Outbox, event_type: str, count: int) -> None:
    """Keys of their own: what waits in a key is another matter."""
    outbox.sql(
        "INSERT INTO outbox.event (event_type, payload, ordering_key)"
        " SELECT %s, convert_to(i::text, 'UTF8'), %s || i %% 40 FROM generate_series(1, %s) i",
        event_type,
        event_type,
        count,
    )


def waiting(outbox: Outbox, relay: str, event_type: str) -> int:
    return int(
        outbox.value(
            "SELECT count(*) FROM outbox.events"
            " WHERE relay = %s AND event_type = %s AND state <> 'PUBLISHED'",
            relay,
            event_type,
        )
    )


def metric(relay: RelayProcess, name: str) -> float:
    lines = relay.get("/metrics")[1].splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))


def test_one_sick_topic_stops_no_other(
    outbox: Outbox, brokers: tuple[Kafka, Kafka], start_relay: StartRelay
) -> None:
    cluster = Cluster(brokers)
    for relay, ordering in RELAYS.items():
        outbox.register(relay, ordering=ordering)
    cluster.lose_the_second()
    load(outbox, "sick", SICK)
    load(outbox, "lost", LOST)
    load(outbox, "well", WELL)
    relays: Mapping[str, RelayProcess] = {
        relay: start_relay(
            outbox.dsn,
            f"pod-{relay}",
            relay,
            ordering=ordering,
            lease="5s",
            batchSize=200,
            retry={"baseDelay": "50ms", "maxDelay": "1s", "maxAttempts": 2},
            kafka={
                "bootstrapServers": cluster.first.bootstrap,
                "topic": relay + "-{event_type}",
                "deliveryTimeout": "2s",
            },
        )
        for relay, ordering in RELAYS.items()
    }

    for relay in RELAYS:
        wait_until(
            lambda relay=relay: cluster.count(f"{relay}-well") >= WELL,  # type: ignore[misc]
            30,
            f"the healthy topic of relay {relay} gets its events",
        )
    for process in relays.values():
        wait_until(lambda p=process: p.happened("parked"), 10, "it is parked")  # type: ignore[misc]

    # Those that come later do not wait for a timeout either.
    load(outbox, "well", WELL)
    for relay in RELAYS:
        wait_until(
            lambda relay=relay: cluster.count(f"{relay}-well") >= 2 * WELL,  # type: ignore[misc]
            10,
            f"relay {relay} goes on",
        )
    for relay, process in relays.items():
        status = process.status()
        assert status["breaker"] == "closed"
        assert status["ready"]
        assert f"{relay}-sick" in [parked["name"] for parked in status["parked"]]
        assert status["parkedDestinations"] == metric(process, "outbox_parked_destinations")
        assert waiting(outbox, relay, "sick") == SICK
        assert waiting(outbox, relay, "lost") == LOST
        assert {e["errorClass"] for e in status["topErrors"]} <= {"destination"}
    assert "DEAD" not in outbox.states()
    spent = "SELECT max(attempts - attempts_base) FROM outbox.deliveries WHERE state = 'PENDING'"
    assert outbox.value(spent) == 0

    cluster.second.start()
    wait_until(lambda: set(outbox.states()) == {"PUBLISHED"}, 60, "all published")
    for relay, process in relays.items():
        assert cluster.count(f"{relay}-sick") >= SICK
        assert cluster.count(f"{relay}-lost") >= LOST
        assert process.happened("unparked")
        assert process.status()["parked"] == []
        assert process.stop() == 0

"""
The connection to Kafka is lost after so many bytes: of requests, or of answers to what is written.

One case at a time, because all clients of a broker get the same address. Which are played,
and how one is played alone: as in `cases`.
"""

import os
import random
import time
from fnmatch import fnmatchcase
from itertools import product
from typing import Any, NamedTuple

import pytest

from chaos.cases import SEED
from dev.services import Kafka, wait_until
from fixtures.agreement import disagreements
from fixtures.bulk import emit_many
from fixtures.leaky import Leak, LeakyProxy
from fixtures.losing import Loss
from fixtures.outbox import Outbox
from fixtures.relays import LocalRelay, local_settings
from fixtures.topics import Consume

pytestmark = [pytest.mark.pg, pytest.mark.kafka, pytest.mark.slow]

LEASE, TIMEOUT, BATCH, WORKERS = 2.0, 1.0, 40, 2
SLACK = 4.0
"""Seconds: the breaker probes after a pause, and a producer that lost its place is made again."""


FAST: dict[str, Any] = {
    "lease": f"{LEASE}s",
    "batchSize": BATCH,
    "workers": WORKERS,
    "retry": {"baseDelay": "20ms", "maxDelay": "100ms", "maxAttempts": 100},
}


class KafkaCase(NamedTuple):
    leak: Leak
    ordering: str
    relays: int

    @property
    def name(self) -> str:
        return f"kafka/{self.leak.loss}:{self.leak.after}:{self.ordering}:{self.relays}"


def chosen() -> list[KafkaCase]:
    losses = (Loss.CUT_BEFORE, Loss.CUT_AFTER, Loss.SWALLOW, Loss.DELAY)
    everything = [
        KafkaCase(Leak(loss, after, 1.5 * TIMEOUT), ordering, relays)
        for loss, after, ordering, relays in product(
            losses, (0, 500, 3000), ("None", "Key"), (1, 3)
        )
    ]
    if wanted := os.environ.get("OUTBOX_CHAOS_CASE"):
        return [case for case in everything if fnmatchcase(case.name, wanted)]
    if os.environ.get("OUTBOX_CHAOS") == "all":
        return everything
    rng = random.Random(SEED)
    ordered = [case for case in everything if case.ordering == "Key"]
    return [rng.choice([case for case in ordered if case.leak.loss is loss]) for loss in losses]


@pytest.mark.parametrize("case", chosen(), ids=lambda case: case.name)
def test_a_connection_lost_while_kafka_writes_changes_nothing(
    case: KafkaCase,
    outbox: Outbox,
    kafka: Kafka,
    topic: str,
    consume: Consume,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert kafka.proxied is not None
    monkeypatch.setenv("OUTBOX_CHAOS_DSN", outbox.dsn)
    address = f"127.0.0.1:{kafka.proxied.proxy_port}"
    publisher = {"bootstrapServers": address, "topic": topic, "deliveryTimeout": f"{TIMEOUT}s"}
    settings: dict[str, Any] = {
        **FAST,
        "ordering": case.ordering,
        "publisher": {"kafka": publisher},
    }
    outbox.register(ordering=case.ordering)
    with LeakyProxy(kafka.proxied.proxy_port, kafka.proxied.port) as proxy:
        relays = [
            LocalRelay(local_settings("OUTBOX_CHAOS_DSN", f"pod-{n}", "relay", **settings), None)
            for n in range(case.relays)
        ]
        try:
            emit_many(outbox, 60, keys=20)
            wait_until(lambda: set(outbox.states()) == {"PUBLISHED"}, 20, "all relays flow")
            proxy.arm(case.leak)
            deadline = time.monotonic() + 20
            while not proxy.struck.wait(0.05):
                assert time.monotonic() < deadline, "no bytes came"
                emit_many(outbox, 60, keys=20)
            emit_many(outbox, 60, keys=20)
            wait_until(lambda: proxy.over_at, 10, "the fault is over")
            patience = 2 * LEASE + SLACK
            wait_until(
                lambda: set(outbox.states()) == {"PUBLISHED"}, patience, "all published again"
            )
            wait_until(
                lambda: not disagreements(outbox.conn, [r.memory() for r in relays]),
                *(patience, "memory equals the database"),
            )
        finally:
            for relay in relays:
                relay.relay.stop()
            for relay in relays:
                relay.stop()
    judge(case, outbox, consume, topic)


def judge(case: KafkaCase, outbox: Outbox, consume: Consume, topic: str) -> None:
    seqs = {str(event): seq for event, seq in outbox.sql("SELECT event_id, seq FROM outbox.event")}
    messages = consume(topic, len(seqs))
    arrived = [
        (message.key, seqs[str(dict(message.headers)["outbox-event-id"], "ascii")])  # type: ignore[arg-type]
        for message in messages
    ]
    assert {seq for _, seq in arrived} == set(seqs.values())
    assert len(arrived) - len(seqs) <= BATCH * WORKERS, "what one process had in flight"
    if case.ordering == "Key":
        latest: dict[bytes | None, int] = {}
        seen: set[int] = set()
        for key, seq in arrived:  # a key is in one partition: in the order of arrival
            if seq not in seen:
                assert seq > latest.get(key, 0), f"seq {seq} of {key!r} came after {latest[key]}"
                latest[key] = seq
                seen.add(seq)

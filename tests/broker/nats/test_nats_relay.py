"""Relays on a database that publish to NATS, and one of them is killed."""

import os
from collections import defaultdict

import pytest

from broker.nats.streams import Admin
from dev.services import Nats, wait_until
from fixtures.outbox import Outbox
from fixtures.relays import StartRelay

pytestmark = [pytest.mark.pg, pytest.mark.nats]

EVENTS = int(os.environ.get("OUTBOX_E2E_EVENTS", "5000"))
KEYS = 50


@pytest.mark.parametrize("atomic", [True, False], ids=["atomic", "one by one"])
@pytest.mark.timeout(240)
def test_three_relays_of_which_one_is_killed_lose_nothing_and_keep_order_and_send_no_copy(
    outbox: Outbox, nats: Nats, admin: Admin, start_relay: StartRelay, atomic: bool
) -> None:
    stream = admin.make(allow_atomic=atomic)
    events = EVENTS if atomic else EVENTS // 5
    publisher = {
        "nats": {
            "servers": [nats.url],
            "subject": f"{stream}.{{event_type}}",
            "deliveryTimeout": "2s",
        }
    }
    pods = [
        start_relay(
            outbox.dsn,
            f"pod-{n}",
            ordering="Key",
            lease="3s",
            batchSize=200,
            publisher=publisher,
            kafka={"bootstrapServers": "unused:1"},  # what starts no Kafka
        )
        for n in range(3)
    ]
    for pod in pods:
        wait_until(lambda pod=pod: pod.happened("started"), 30, "started")  # type: ignore[misc]
    outbox.sql(
        "INSERT INTO outbox.event (event_type, payload, ordering_key)"
        " SELECT 'a.b', n::text::bytea, 'k' || n %% %s FROM generate_series(1, %s) n",
        KEYS,
        events,
    )

    def count() -> int:
        return outbox.states().get("PUBLISHED", 0)

    wait_until(lambda: count() > events // 10, 60, "some published")
    pods[0].kill()
    wait_until(lambda: count() == events, 120, "all published")
    stored = admin.received(stream, events)
    by_key: dict[int, list[int]] = defaultdict(list)
    for message in stored:
        number = int(message.payload)
        by_key[number % KEYS].append(number)
    assert len(stored) == events  # each once, also what the killed one had sent
    assert all(numbers == sorted(numbers) for numbers in by_key.values())
    assert sum(len(set(numbers)) for numbers in by_key.values()) == events
    in_batches = sum(any(name == "Nats-Batch-Id" for name, _ in m.headers) for m in stored)
    assert (in_batches > events // 2) == atomic

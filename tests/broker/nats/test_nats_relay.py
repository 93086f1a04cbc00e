"""Relays on a database that publish to NATS, and one of them is killed."""

import pytest

from broker.nats.streams import Admin
from dev.services import Nats, wait_until
from fixtures.outbox import Outbox
from fixtures.relays import StartRelay
from fixtures.volume import LEASE, events, kill_at_work, patience, tally

pytestmark = [pytest.mark.pg, pytest.mark.nats]

EVENTS = events(5000)
PATIENCE = patience(EVENTS)
KEYS = 50


@pytest.mark.parametrize("atomic", [True, False], ids=["atomic", "one by one"])
@pytest.mark.timeout(2 * PATIENCE)
def test_three_relays_of_which_one_is_killed_lose_nothing_and_keep_order_and_send_no_copy(
    outbox: Outbox, nats: Nats, admin: Admin, start_relay: StartRelay, atomic: bool
) -> None:
    stream = admin.make(allow_atomic=atomic)
    count = EVENTS if atomic else EVENTS // 5
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
            lease=LEASE,
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
        count,
    )

    def published() -> int:
        return outbox.states().get("PUBLISHED", 0)

    wait_until(lambda: published() > count // 10, PATIENCE, "some published")
    kill_at_work(outbox, pods)
    wait_until(lambda: published() == count, PATIENCE, "all published")
    stored = admin.received(stream, count)
    # Each once, also what the killed one had sent.
    assert tally([int(message.payload) for message in stored], count, KEYS) == (0, 0, 0)
    in_batches = sum(any(name == "Nats-Batch-Id" for name, _ in m.headers) for m in stored)
    assert (in_batches > count // 2) == atomic

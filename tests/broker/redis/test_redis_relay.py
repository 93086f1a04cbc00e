"""Three relays, one of them killed: nothing is lost, no key gets out of order."""

import time

import pytest

from broker.redis.servers import entries, reader
from dev.services import wait_until
from dev.services.redis import Redis
from fixtures.outbox import Outbox
from fixtures.relays import StartRelay
from fixtures.volume import LEASE, events, in_flight, kill_at_work, patience, tally

EVENTS = events(5000)
PATIENCE = patience(EVENTS)
pytestmark = [
    *(pytest.mark.pg, pytest.mark.redis, pytest.mark.slow),
    pytest.mark.timeout(2 * PATIENCE),
]

BATCH, WORKERS = 100, 2
KEYS = 50


def test_em_18_three_relays_and_a_kill_lose_nothing_and_keep_order(
    outbox: Outbox, redis: Redis, stream: str, start_relay: StartRelay
) -> None:
    outbox.register(ordering="Key")
    outbox.sql(
        "INSERT INTO outbox.event (event_type, payload, ordering_key)"
        " SELECT 'order.created', convert_to(i::text, 'UTF8'), 'k' || i %% %s"
        " FROM generate_series(1, %s) i",
        KEYS,
        EVENTS,
    )
    pods = [
        start_relay(
            outbox.dsn,
            f"pod-{n}",
            kafka={"bootstrapServers": "unused:1"},  # what follows stands instead of it
            publisher={"redis": {"url": redis.url, "stream": stream, "deliveryTimeout": "2s"}},
            ordering="Key",
            lease=LEASE,
            batchSize=BATCH,
            workers=WORKERS,
            retry={"baseDelay": "50ms", "maxDelay": "500ms"},
        )
        for n in range(3)
    ]

    def arrived() -> int:
        with reader(redis) as conn:
            length: int = conn.xlen(stream)
            return length

    wait_until(lambda: arrived() > EVENTS // 10, PATIENCE, "they are at work")
    kill_at_work(outbox, pods)
    begin = time.monotonic()
    wait_until(lambda: outbox.states() == {"PUBLISHED": EVENTS}, PATIENCE, "all published")
    print(f"published {time.monotonic() - begin:.1f} s after the kill")
    found = tally([entry.number for entry in entries(redis, stream)], EVENTS, KEYS)
    assert (found.lost, found.disorder) == (0, 0)
    assert found.duplicates <= in_flight(BATCH, WORKERS)

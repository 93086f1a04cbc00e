"""Relays on a database and an HTTP endpoint: killed, and nothing is lost or out of order."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from dev.services import wait_until
from dev.services.http import HttpServer
from fixtures.outbox import Outbox
from fixtures.relays import RelayProcess

pytestmark = [pytest.mark.http, pytest.mark.pg, pytest.mark.slow, pytest.mark.timeout(240)]

EVENTS = int(os.environ.get("OUTBOX_E2E_EVENTS", "5000"))
BATCH = 100
KEYS = 500
"""Of one key only one event is in flight, so with few keys this would take long."""


@pytest.fixture
def start(outbox: Outbox, http_server: HttpServer, tmp_path: Path) -> Iterator[list[RelayProcess]]:
    """Three relays."""
    started = []
    for n in range(3):
        config = tmp_path / f"pod-{n}.yaml"
        settings = {
            "name": "relay",
            "ordering": "Key",
            "lease": "3s",
            "batchSize": BATCH,
            "retry": {"baseDelay": "50ms", "maxDelay": "500ms"},
            "publisher": {
                "http": {
                    "url": f"{http_server.url}/{{event_type}}",
                    "deliveryTimeout": "2s",
                    "timeout": "1s",
                    "perEndpoint": 8,
                }
            },
            "http": {"host": "127.0.0.1", "port": 0},
        }
        config.write_text(yaml.safe_dump(settings))
        started.append(RelayProcess(config, outbox.dsn, f"pod-{n}"))
    yield started
    for process in started:
        if process.running:
            process.kill()


def test_killed_at_work_loses_nothing_and_keeps_the_order(
    outbox: Outbox, http_server: HttpServer, start: list[RelayProcess]
) -> None:
    outbox.register(ordering="Key")
    outbox.sql(
        "INSERT INTO outbox.event (event_type, payload, ordering_key)"
        " SELECT 'order.created', convert_to(i::text, 'UTF8'), 'k' || i %% %s"
        " FROM generate_series(1, %s::bigint) i",
        KEYS,
        EVENTS,
    )
    http_server.received(EVENTS // 5, 60)
    victim = str(outbox.value("SELECT claimed_by FROM outbox.delivery WHERE state = 'CLAIMED'"))
    next(process for process in start if process.pod == victim).kill()
    wait_until(lambda: outbox.states() == {"PUBLISHED": EVENTS}, 150, "all published")
    numbers = [int(got.body) for got in http_server.got]
    assert set(numbers) == set(range(1, EVENTS + 1))
    assert len(numbers) - EVENTS <= 2 * BATCH  # what the victim's two workers had in flight
    first: dict[int, list[int]] = {}
    for number in dict.fromkeys(numbers):
        first.setdefault(number % KEYS, []).append(number)
    assert all(found == sorted(found) for found in first.values())

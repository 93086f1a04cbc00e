"""
Relays on a database and HTTP endpoints: one is killed, or an endpoint is silent for a while, and
nothing is lost or out of order.
"""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest
import yaml

from dev.services import wait_until
from dev.services.http import Got, HttpServer, Reply
from fixtures.outbox import Outbox
from fixtures.relays import RelayProcess
from fixtures.volume import LEASE, events, in_flight, kill_at_work, patience, tally

EVENTS = events(5000)
PATIENCE = patience(EVENTS)
pytestmark = [
    *(pytest.mark.http, pytest.mark.pg, pytest.mark.slow),
    pytest.mark.timeout(2 * PATIENCE),
]

BATCH, WORKERS = 100, 2
KEYS = 500
"""Of one key only one event is in flight, so with few keys this would take long."""


class Start(Protocol):
    def __call__(self, count: int, **http: Any) -> list[RelayProcess]: ...


@pytest.fixture
def start(outbox: Outbox, tmp_path: Path) -> Iterator[Start]:
    """Relays with these settings of publisher.http."""
    started: list[RelayProcess] = []

    def make(count: int, **http: Any) -> list[RelayProcess]:
        for n in range(count):
            config = tmp_path / f"pod-{n}.yaml"
            settings = {
                "name": "relay",
                "ordering": "Key",
                "lease": LEASE,
                "batchSize": BATCH,
                "workers": WORKERS,
                "retry": {"baseDelay": "50ms", "maxDelay": "500ms"},
                "publisher": {"http": {"deliveryTimeout": "2s", "timeout": "1s", **http}},
                "http": {"host": "127.0.0.1", "port": 0},
            }
            config.write_text(yaml.safe_dump(settings))
            started.append(RelayProcess(config, outbox.dsn, f"pod-{n}"))
        return started

    yield make
    for process in started:
        if process.running:
            process.kill()


def test_killed_at_work_loses_nothing_and_keeps_the_order(
    outbox: Outbox, http_server: HttpServer, start: Start
) -> None:
    outbox.register(ordering="Key")
    pods = start(3, url=f"{http_server.url}/{{event_type}}", perEndpoint=8)
    outbox.sql(
        "INSERT INTO outbox.event (event_type, payload, ordering_key)"
        " SELECT 'order.created', convert_to(i::text, 'UTF8'), 'k' || i %% %s"
        " FROM generate_series(1, %s::bigint) i",
        KEYS,
        EVENTS,
    )
    http_server.received(EVENTS // 5, PATIENCE)
    kill_at_work(outbox, pods)
    wait_until(lambda: outbox.states() == {"PUBLISHED": EVENTS}, PATIENCE, "all published")
    found = tally([int(got.body) for got in http_server.got], EVENTS, KEYS)
    assert (found.lost, found.disorder) == (0, 0)
    assert found.duplicates <= in_flight(BATCH, WORKERS)


def test_an_endpoint_that_is_silent_for_a_while_gets_all_in_order_and_costs_no_attempts(
    outbox: Outbox, http_server: HttpServer, start: Start
) -> None:
    count, keys = 400, 20
    well = threading.Event()
    arrived: list[int] = []

    def hang(got: Got) -> Reply:
        arrived.append(int(got.body))
        well.wait(60)
        return Reply()

    with HttpServer() as sick:
        sick.answer = hang
        outbox.register(ordering="Key")
        start(
            2,
            request="Payload",
            allowedHosts=["127.0.0.1"],
            allowedNetworks=["127.0.0.0/8"],
        )
        # Every second key is for the one that is silent.
        outbox.sql(
            "INSERT INTO outbox.event (event_type, payload, ordering_key) SELECT 'call',"
            ' convert_to(format(\'{"url": "%%s", "body": %%s}\', (%s::text[])[1 + i %% 2], i),'
            " 'UTF8'), 'k' || i %% %s FROM generate_series(1, %s::bigint) i",
            [http_server.url + "/", sick.url + "/"],
            keys,
            count,
        )
        http_server.received(count // 2, PATIENCE)
        asked = len(arrived)
        wait_until(lambda: len(arrived) > asked, PATIENCE, "a trial")
        well.set()
        wait_until(lambda: outbox.states() == {"PUBLISHED": count}, PATIENCE, "all published")
    found = tally([int(got.body) for got in http_server.got] + arrived, count, keys)
    assert (found.lost, found.disorder) == (0, 0)
    assert outbox.value("SELECT max(attempts - attempts_base) FROM outbox.deliveries") == 1

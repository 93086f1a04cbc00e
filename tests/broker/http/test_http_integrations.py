"""
Calls to the outside as CANON-EVENTS-001 describes them, through a relay on a database: one that
keeps failing is tried as often as its type allows, later each time, and then waits for a person.
"""

import time
from collections.abc import Iterator
from itertools import pairwise

import pytest

from dev.services import wait_until
from dev.services.http import Got, HttpServer, Reply
from fixtures.cli import Cli
from fixtures.outbox import Outbox
from fixtures.relays import LocalRelay, local_settings

pytestmark = [pytest.mark.http, pytest.mark.pg]

RETRIES = {"SEND_EMAIL": (4, 0.02), "API_CALL": (6, 0.01), "SOR_UPDATE": (2, 0.05)}
"""Attempts, and the delay in seconds before the second: a hundredth of the text's."""


class Endpoint:
    """Refuses every call until it is repaired, and knows when which were made."""

    def __init__(self, server: HttpServer) -> None:
        self.repaired = False
        self.calls: dict[str, list[float]] = {}
        """By idempotency key."""
        server.answer = self._answer

    def _answer(self, got: Got) -> Reply:
        key = got.header("x-idempotency-key")
        assert key is not None
        self.calls.setdefault(key, []).append(time.monotonic())
        return Reply(200, b"done") if self.repaired else Reply(500, b"out of order")


@pytest.fixture
def endpoint(http_server: HttpServer) -> Endpoint:
    return Endpoint(http_server)


@pytest.fixture
def relay(
    outbox: Outbox, http_server: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> Iterator[LocalRelay]:
    monkeypatch.setenv("OUTBOX_HTTP_DSN", outbox.dsn)
    overrides = [
        {"eventType": type, "maxAttempts": attempts, "baseDelay": f"{delay * 1000:g}ms"}
        for type, (attempts, delay) in RETRIES.items()
    ]
    outbox.register()
    relay = LocalRelay(
        local_settings(
            *("OUTBOX_HTTP_DSN", "pod-1", "relay"),
            publisher={"http": {"url": f"{http_server.url}/{{event_type}}"}},
            retry={"jitter": 0, "overrides": overrides},
            lease="1m",
        ),
        None,
    )
    yield relay
    relay.stop()


@pytest.fixture
def cli(outbox: Outbox, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.setenv("OUTBOX_DSN", outbox.dsn)
    return Cli(capsys)


def emit(outbox: Outbox, event_type: str, key: str, **fields: int) -> object:
    return outbox.emit(event_type, b"{}", idempotency_key=key, **fields)


@pytest.mark.usefixtures("relay")
def test_ce_15_ce_16_ce_17_ce_25_a_failing_call_is_made_as_often_as_its_type_allows_and_ever_later(
    outbox: Outbox, endpoint: Endpoint
) -> None:
    for event_type in RETRIES:
        emit(outbox, event_type, event_type)
    emit(outbox, "API_CALL", "own limit", max_attempts=3)
    wait_until(lambda: outbox.states() == {"DEAD": 4}, 30, "all are dead")
    made = {key: len(times) for key, times in endpoint.calls.items()}
    assert made == {"SEND_EMAIL": 4, "API_CALL": 6, "SOR_UPDATE": 2, "own limit": 3}
    for event_type, (_, delay) in RETRIES.items():
        pauses = [after - before for before, after in pairwise(endpoint.calls[event_type])]
        wanted = [delay * 2**n for n in range(len(pauses))]
        assert all(pause >= least for pause, least in zip(pauses, wanted, strict=True))


@pytest.mark.usefixtures("relay")
def test_ce_13_ce_14_ce_19_a_dead_call_shows_its_error_and_is_made_again_once_the_cause_is_fixed(
    outbox: Outbox, endpoint: Endpoint, cli: Cli
) -> None:
    event = emit(outbox, "SOR_UPDATE", "k")
    wait_until(lambda: outbox.states() == {"DEAD": 1}, 30, "it is dead")
    error = outbox.event(event)["last_error"]
    assert (error["class"], error["code"]) == ("transient", "HTTP_500")
    assert "out of order" in error["text"]
    endpoint.repaired = True
    cli("replay", event, "--reason", "the endpoint works again")
    wait_until(lambda: outbox.states() == {"PUBLISHED": 1}, 30, "it is published")
    row = outbox.event(event)
    assert (row["result"], row["last_error"], row["attempts"]) == ("200 done", None, 3)
    assert len(endpoint.calls["k"]) == 3

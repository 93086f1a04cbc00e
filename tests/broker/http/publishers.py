"""A server, and publishers to test, closed when their test ends."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Protocol

import pytest

from dev.services.http import HttpServer
from outbox_core.contract.publishers.http import HttpSettings
from outbox_relay.publishers.http.publisher import HttpPublisher


@pytest.fixture
def http_server() -> Iterator[HttpServer]:
    with HttpServer() as server:
        yield server


class MakePublisher(Protocol):
    def __call__(self, url: str | None = None, /, **settings: Any) -> HttpPublisher:
        """Settings as in relay.yaml; by default to the server of the test."""


@pytest.fixture
def make_publisher(http_server: HttpServer) -> Iterator[MakePublisher]:
    made: list[HttpPublisher] = []

    def make(url: str | None = None, /, **settings: Any) -> HttpPublisher:
        given: dict[str, Any] = {"deliveryTimeout": "10s", "timeout": "5s", **settings}
        if given.get("request") != "Payload":
            given.setdefault("url", url or f"{http_server.url}/hook")
        publisher = HttpPublisher(HttpSettings.model_validate(given))
        made.append(publisher)
        return publisher

    yield make
    http_server.released.set()
    for publisher in made:
        publisher.close(timedelta(seconds=1))

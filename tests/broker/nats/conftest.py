"""A server, publishers and streams, for all tests of this folder."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

import pytest

from broker.nats.streams import Admin
from dev.services import Nats
from outbox_core.contract.publishers.nats import NatsSettings
from outbox_relay.publishers.nats.publisher import NatsPublisher


class MakePublisher(Protocol):
    def __call__(
        self, *, in_order: bool = False, timeout: float = 20, **settings: Any
    ) -> NatsPublisher:
        """A publisher of the test server with these settings."""


@pytest.fixture(scope="session")
def nats(server_folder: Path) -> Iterator[Nats]:
    with Nats(server_folder / "nats") as server:
        yield server


@pytest.fixture
def frozen_nats(nats: Nats) -> Iterator[Nats]:
    """A server that the test may `pause()`; it goes on afterwards."""
    yield nats
    nats.resume()


@pytest.fixture
def mortal_nats(nats: Nats) -> Iterator[Nats]:
    """A server that the test may stop or kill; it is started again afterwards."""
    yield nats
    nats.start()


@pytest.fixture
def admin(nats: Nats) -> Admin:
    return Admin(nats)


@pytest.fixture
def make_publisher(nats: Nats) -> Iterator[MakePublisher]:
    made: list[NatsPublisher] = []

    def make(*, in_order: bool = False, timeout: float = 20, **settings: Any) -> NatsPublisher:
        filled = {
            "servers": (nats.url,),
            "delivery_timeout": timedelta(seconds=timeout),
            **settings,
        }
        publisher = NatsPublisher(NatsSettings(**filled), in_order)
        made.append(publisher)
        return publisher

    yield make
    for publisher in made:
        publisher.close(timedelta(seconds=1))

"""A server, publishers and queues, for all tests of this folder."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

import pytest

from broker.sqs.queues import Queues
from dev.services import ElasticMq
from outbox_core.contract.publishers.sqs import SqsSettings
from outbox_relay.publishers.sqs.publisher import SqsPublisher

KEYS = {"access_key_id": {"env": "TEST_KEY_ID"}, "secret_access_key": {"env": "TEST_SECRET"}}


class MakePublisher(Protocol):
    def __call__(self, queue_url: str, *, timeout: float = 20, **settings: Any) -> SqsPublisher:
        """A publisher to these queues with these settings."""


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Of nobody's account, and no request leaves this machine: botocore asks the network for what
    it does not find here."""
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    for name in ("AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TEST_KEY_ID", "AKIDTEST")
    monkeypatch.setenv("TEST_SECRET", "not-to-be-seen")


@pytest.fixture(scope="session")
def elasticmq(server_folder: Path) -> Iterator[ElasticMq]:
    with ElasticMq(server_folder / "elasticmq") as server:
        yield server


@pytest.fixture
def frozen_elasticmq(elasticmq: ElasticMq) -> Iterator[ElasticMq]:
    """A server that the test may `pause()`; it goes on afterwards."""
    yield elasticmq
    elasticmq.resume()


@pytest.fixture
def mortal_elasticmq(elasticmq: ElasticMq) -> Iterator[ElasticMq]:
    """A server that the test may stop or kill; it is started again afterwards."""
    yield elasticmq
    elasticmq.start()


@pytest.fixture(scope="session")
def queues(elasticmq: ElasticMq) -> Queues:
    return Queues(elasticmq)


@pytest.fixture
def make_publisher() -> Iterator[MakePublisher]:
    made: list[SqsPublisher] = []

    def make(queue_url: str, *, timeout: float = 20, **settings: Any) -> SqsPublisher:
        filled = {
            "queue_url": queue_url,
            "region": "eu-west-1",
            "delivery_timeout": timedelta(seconds=timeout),
            **KEYS,
            **settings,
        }
        publisher = SqsPublisher(SqsSettings(**filled))
        made.append(publisher)
        return publisher

    yield make
    for publisher in made:
        publisher.close(timedelta(seconds=1))

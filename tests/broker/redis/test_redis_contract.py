"""Redis keeps the contract of a publisher, in every format, in order or not."""

from dataclasses import dataclass

import pytest

from broker.redis.servers import Entry, MakePublisher, entries
from conformance.publisher_contract import PublisherContract, Received, Target, make_claim
from dev.services import wait_until
from dev.services.redis import Redis
from outbox_core.model.event import Claim
from outbox_relay.publishers.redis.publisher import RedisPublisher

pytestmark = pytest.mark.redis

ID_HEADER = {"Raw": "outbox-event-id", "CloudEvents": "ce_id"}


@dataclass
class RedisTarget(Target):
    publisher: RedisPublisher
    server: Redis
    stream: str
    format: str

    def __post_init__(self) -> None:
        self.carries_headers = self.format != "Debezium"

    def fit(self, claim: Claim) -> Claim:
        return claim._replace(aggregate_id="42") if self.format == "Debezium" else claim

    def received(self, n: int) -> list[Received]:
        wait_until(lambda: len(entries(self.server, self.stream)) >= n, 10, f"{n} entries")
        return [self._received(entry) for entry in entries(self.server, self.stream)]

    def _received(self, entry: Entry) -> Received:
        fields = entry.fields
        key = fields[b"key"].decode() if b"key" in fields else None
        if self.format == "Debezium":
            return Received(fields[b"value"], key, [], fields[b"ID"].decode())
        headers = [(name, None if v is None else v.encode()) for name, v in entry.headers]
        event_id = dict(headers)[ID_HEADER[self.format]]
        assert event_id is not None
        return Received(fields[b"payload"], key, headers, event_id.decode())

    def refused_claim(self) -> Claim:
        return self.fit(make_claim(b"x" * 1_000_001))

    def break_down(self) -> None:
        self.server.pause()


@pytest.fixture(params=["Raw", "CloudEvents", "Debezium"])
def format(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=[False, True], ids=["unordered", "ordered"])
def target(
    server: Redis,
    stream: str,
    make_publisher: MakePublisher,
    format: str,
    request: pytest.FixtureRequest,
) -> RedisTarget:
    publisher = make_publisher(stream, in_order=request.param, timeout=2, format=format)
    return RedisTarget(publisher, server, stream, format)


class TestRedis(PublisherContract):
    pass

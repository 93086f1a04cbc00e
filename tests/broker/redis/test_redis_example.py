"""examples/relay-redis.yaml on a real server with a replica, without TLS and a login."""

from pathlib import Path

import pytest

from broker.redis.servers import entries, reader
from conformance.publisher_contract import make_claim
from dev.services import wait_until
from dev.services.redis import Redis
from fixtures.examples import MakeExample
from outbox_core.model.attempt import Acked

pytestmark = pytest.mark.redis


def test_the_example_publishes(redis: Redis, make_example: MakeExample, tmp_path: Path) -> None:
    with Redis(tmp_path / "replica", {"replicaof": f"127.0.0.1 {redis.port}"}) as replica:
        publisher = make_example(
            "redis", url=f"{redis.url}/0", username=None, password=None, tls=None
        )
        with reader(redis) as conn:
            wait_until(lambda: conn.wait(1, 1000) >= 1, 20, "it has its first copy")
        (outcome,) = publisher.publish([make_claim(b"paid", aggregate_type="Order")])
        assert isinstance(outcome, Acked), outcome
        assert entries(replica, "shop.Order")[-1].fields[b"payload"] == b"paid"
        samples = [{"event_type": "a", "aggregate_type": "Order", "tenant_id": None}]
        assert not [r for r in publisher.check(samples) if r.level == "fail"]

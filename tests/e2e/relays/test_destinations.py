"""An OutboxRelay publishes elsewhere than to Kafka: each event arrives, in the order of its key."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from dev.cluster import binaries, tiny_image
from fixtures import workloads
from fixtures.shop import Shop

EVENTS = 300
KEYS = 20
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
NATS_IMAGE = "localhost/outbox-nats:1"


def in_order(numbers: Sequence[int]) -> bool:
    """`emit.py` gives number n to key n % KEYS."""
    return all(
        mine == sorted(mine) for k in range(KEYS) if (mine := [n for n in numbers if n % KEYS == k])
    )


def test_ce_32_events_reach_an_http_endpoint_signed_and_in_order(shop: Shop) -> None:
    shop.namespace.apply(
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "webhooks"},
            "stringData": {"secret": SECRET},
        }
    )
    endpoint = f"http://tools.{shop.backends.namespace.name}.svc:8000/sink/{shop.topic}"
    shop.apply(
        publisher={
            "http": {
                "url": endpoint,
                "deliveryTimeout": "4s",
                "timeout": "3s",
                "signing": {"secretRefs": [{"name": "webhooks", "key": "secret"}]},
            }
        },
        ordering="Key",
        replicas=2,
    )
    shop.wait_settled(2)
    shop.finish(shop.emit(EVENTS, KEYS), 60)
    shop.wait_published(EVENTS)
    received: list[dict[str, Any]] = shop.backends.tools.received(shop.topic)
    first = {r["headers"]["idempotency-key"]: int(r["body"]) for r in reversed(received)}
    assert sorted(first.values()) == list(range(EVENTS))
    assert in_order(list(reversed(first.values())))
    assert all(r["headers"]["webhook-signature"].startswith("v1,") for r in received)
    assert shop.sql("SELECT DISTINCT result FROM outbox.deliveries") == ["200 taken"]


@pytest.fixture
def nats(shop: Shop, tmp_path: Path) -> str:
    """A server of the shop's own, in its namespace; returns its URL."""
    program = tmp_path / "nats-server"
    shutil.copy(binaries.built_nats(), program)
    tiny_image.pack(program, NATS_IMAGE, binaries.architecture())
    packed = tiny_image.TinyImage(NATS_IMAGE, tmp_path / "nats-server.tar")
    server = workloads.container(
        "nats",
        shop.namespace.kube.image(packed),
        args=["--jetstream", "--store_dir", "/data", "--port", "4222"],
        volumeMounts=[{"name": "data", "mountPath": "/data"}],
        readinessProbe={"tcpSocket": {"port": 4222}, "periodSeconds": 1},
    )
    volumes = [{"name": "data", "emptyDir": {}}]
    pod = workloads.pod(server, volumes=volumes, terminationGracePeriodSeconds=workloads.SOON)
    shop.namespace.apply(workloads.service("nats", 4222), workloads.deployment("nats", 1, pod))
    shop.namespace.wait_for_rollout("nats")
    return f"nats://nats.{shop.namespace.name}.svc:4222"


def test_events_reach_a_stream_of_nats_once_and_in_order(shop: Shop, nats: str) -> None:
    shop.finish(shop.start("nats_stream.py", nats, "create", "ORDERS", "shop.>"), 60)
    shop.apply(
        publisher={
            "nats": {"servers": [nats], "subject": "shop.{event_type}", "deliveryTimeout": "4s"}
        },
        ordering="Key",
        replicas=2,
    )
    shop.wait_settled(2)
    shop.finish(shop.emit(EVENTS, KEYS), 60)
    shop.wait_published(EVENTS)
    numbers = json.loads(shop.finish(shop.start("nats_stream.py", nats, "read", "ORDERS"), 60))
    assert sorted(numbers) == list(range(EVENTS))
    assert in_order(numbers)

"""The API server is killed under load and comes back: pods publish on, the operator goes on."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest

from dev.cluster.builtin.node import BuiltInNode
from dev.cluster.clusters import Cluster
from dev.services import wait_until
from fixtures import workloads
from fixtures.installation import Installation
from fixtures.shop import Shop

EVENTS = 9000
WITHOUT = 1500
"""Published while there is none: some seconds, so that watches and probes notice."""


@pytest.fixture
def node(cluster: Cluster) -> BuiltInNode:
    if not isinstance(cluster, BuiltInNode):
        pytest.skip("of other clusters we do not know how to restart their API server")
    return cluster


@contextmanager
def without_api_server(node: BuiltInNode) -> Iterator[None]:
    pid = (node.folder / "pids" / "kube-apiserver").read_text().split()[0]
    os.kill(int(pid), signal.SIGKILL)
    try:
        yield
    finally:
        node.up()  # and with it those components that ended for want of it


@contextmanager
def to_the_database(shop: Shop) -> Iterator[psycopg.Connection]:
    """Not by way of kubectl exec: that is the API server's."""
    (server,) = shop.backends.namespace.pods("app=postgres")
    dsn = f"postgresql://postgres:{workloads.PASSWORD}@{server.status.pod_ip}/{shop.database}"
    with psycopg.connect(dsn, autocommit=True) as connection:
        yield connection


def published(connection: psycopg.Connection) -> int:
    counted = connection.execute(
        "SELECT count(*) FROM outbox.deliveries WHERE state = 'PUBLISHED'"
    ).fetchone()
    assert counted is not None
    return int(counted[0])


def test_events_flow_without_an_api_server(
    shop: Shop, node: BuiltInNode, installed: Installation
) -> None:
    shop.apply(replicas=2, ordering="Key")
    shop.apply("bills", subscription={"eventTypes": ["bill.*"]})
    shop.wait_settled(2)
    shop.wait_settled(name="bills")
    pods, operators, restarts = shop.relay_pods(), installed.pods, installed.restarts()
    emitting = shop.emit(EVENTS, seconds=30)
    shop.wait_published(1)
    with to_the_database(shop) as connection, without_api_server(node):
        before = published(connection)
        more = before + WITHOUT
        wait_until(lambda: published(connection) >= more, 60, f"{more} published")

    shop.delete("bills")  # most likely before the operator watches again
    shop.wait_gone(90, "bills")

    shop.finish(emitting, 60)
    arrived = shop.arrived(EVENTS)
    assert arrived["missing"] == arrived["disorder"] == 0
    assert shop.relay_pods() == pods
    assert shop.restarts() == 0

    shop.patch({"replicas": 1, "batchSize": 100})
    shop.wait_settled(1)
    assert not shop.relay_pods() & pods
    assert (installed.pods, installed.restarts()) == (operators, restarts)
    shop.wait_gone(0, "bills")  # and still is

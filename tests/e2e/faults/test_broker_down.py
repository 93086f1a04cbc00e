"""The broker is away for a while: nothing is claimed, nothing dies, and then all of it arrives."""

import pytest

from fixtures.breakable import Server, with_own_kafka
from fixtures.cluster import Namespace
from fixtures.installation import Installation
from fixtures.shop import Backends, Shop

EVENTS = 4000


@pytest.fixture
def shop_and_server(
    namespace: Namespace, backends: Backends, installed: Installation
) -> tuple[Shop, Server]:
    own, server = with_own_kafka(namespace, backends)
    return Shop(namespace, own), server


def test_an_outage_of_the_broker_costs_no_event(shop_and_server: tuple[Shop, Server]) -> None:
    shop, kafka = shop_and_server
    # One attempt: what an outage would count against an event kills it.
    shop.apply(replicas=2, ordering="Key", retry={"maxAttempts": 1})
    shop.wait_settled(2)
    pods = shop.relay_pods()
    emitting = shop.emit(EVENTS, seconds=20)
    shop.wait_published(1)

    kafka.hold_down()
    degraded = shop.wait_condition("Degraded", "True", "BrokerUnreachable")
    assert shop.backends.kafka in degraded["message"]
    shop.wait_condition("Ready", "False", "BrokerUnreachable")
    shop.namespace.wait(lambda: shop.status()["backlog"]["pending"], 60, "a backlog that grows")
    kafka.let_up()
    shop.wait_condition("Ready", "True")
    shop.wait_condition("Degraded", "False")

    shop.finish(emitting, 60)
    arrived = shop.arrived(EVENTS)
    assert arrived["missing"] == arrived["disorder"] == 0
    shop.wait_published(EVENTS)
    assert shop.relay_pods() == pods
    assert shop.restarts() == 0
    told = [reason for reason, _ in shop.events()]
    assert told.count("BrokerUnreachable") == told.count("Recovered") == 1
    assert "DeadLetters" not in told

"""The database fails and comes back: relays wait for it, and lose nothing."""

import pytest

from fixtures.breakable import Server, with_own_postgres
from fixtures.cluster import Namespace
from fixtures.installation import Installation
from fixtures.shop import Backends, Shop

EVENTS = 6000
BATCH = 50
WORKERS = 2
PODS = 2


@pytest.fixture
def shop_and_server(
    namespace: Namespace, backends: Backends, installed: Installation
) -> tuple[Shop, Server]:
    own, server = with_own_postgres(namespace, backends)
    return Shop(namespace, own), server


def test_relays_survive_their_database(shop_and_server: tuple[Shop, Server]) -> None:
    shop, postgres = shop_and_server
    # Long times: what is sent twice shall be for the database alone.
    shop.apply(
        replicas=PODS,
        ordering="Key",
        batchSize=BATCH,
        workers=WORKERS,
        lease="20s",
        publisher=shop.to(shop.topic, "15s"),
    )
    shop.wait_settled(PODS)
    pods = shop.relay_pods()
    emitting = shop.emit(EVENTS, seconds=20)
    shop.wait_published(1)

    postgres.kill()  # a restart: nobody needs to hear of it
    published = shop.wait_published(1)
    shop.wait_published(published + 100)
    assert shop.condition("Ready")["status"] == "True"
    assert shop.condition("Degraded")["status"] == "False"

    postgres.hold_down()
    degraded = shop.wait_condition("Degraded", "True", "StoreUnreachable")
    assert "Connection refused" in degraded["message"]
    shop.wait_condition("Ready", "False", "StoreUnreachable")
    postgres.let_up()
    shop.wait_condition("Ready", "True")
    shop.wait_condition("Degraded", "False")

    shop.finish(emitting, 60)
    arrived = shop.arrived(EVENTS)
    assert arrived["missing"] == arrived["disorder"] == 0
    assert arrived["again"] <= 2 * PODS * WORKERS * BATCH  # in flight when it fell, twice
    shop.wait_published(EVENTS)
    assert shop.sql("SELECT DISTINCT state FROM outbox.deliveries") == ["PUBLISHED"]
    assert shop.relay_pods() == pods
    assert shop.restarts() == 0
    told = [reason for reason, _ in shop.events()]
    assert told.count("StoreUnreachable") == told.count("Recovered") == 1

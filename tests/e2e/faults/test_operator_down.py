"""The operator is away: relays work on, what changes meanwhile is taken up when it is back."""

from fixtures.installation import Installation
from fixtures.shop import Shop

EVENTS = 4000


def test_relays_need_no_operator_to_work(shop: Shop, installed: Installation) -> None:
    shop.apply(replicas=2, ordering="Key")
    shop.apply("bills", subscription={"eventTypes": ["bill.*"]})
    shop.wait_settled(2)
    shop.wait_settled(name="bills")
    before = shop.status()
    victim, kept = sorted(shop.relay_pods())

    with installed.stopped():
        emitting = shop.emit(EVENTS, seconds=8)
        shop.wait_published(1)
        shop.namespace.kube.core.delete_namespaced_pod(
            victim, shop.namespace.name, grace_period_seconds=0
        )
        shop.patch({"batchSize": 100})
        shop.delete_child("Service", "orders-relay")
        shop.delete("bills")  # retained, so that nobody has to agree
        shop.wait_gone(90, "bills")
        shop.finish(emitting, 60)
        arrived = shop.arrived(EVENTS)
        assert arrived["missing"] == arrived["disorder"] == 0
        shop.namespace.wait_for_rollout("orders-relay")
        assert kept in shop.relay_pods()
        assert shop.status() == before  # nobody writes it
        pods = shop.relay_pods()

    shop.wait_settled(2)
    assert not pods & shop.relay_pods()
    assert "batchSize: 100" in (shop.child("ConfigMap") or {})["data"]["relay.yaml"]
    assert shop.child("Service")
    assert installed.restarts() == 0

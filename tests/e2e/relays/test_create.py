"""An OutboxRelay is created: children appear, events flow, the status shows it."""

from fixtures.installation import Installation
from fixtures.shop import Shop


def test_a_relay_is_created_and_events_flow(shop: Shop) -> None:
    shop.apply(replicas=2, ordering="Key", **shop.unhurried())
    shop.wait_settled(2)
    status = shop.status()
    assert status["replicas"] == status["readyReplicas"] == 2
    assert status["relayName"] == f"{shop.namespace.name}/orders"
    for kind in (
        "ConfigMap",
        "Service",
        "ServiceAccount",
        "Deployment",
        "PodDisruptionBudget",
        "NetworkPolicy",
    ):
        assert shop.child(kind), kind
    reaper = shop.child("CronJob", "orders-reaper")
    assert reaper
    assert reaper["spec"]["suspend"] is True  # relays reap by themselves
    assert shop.row()["Replicas"] == "2/2"
    assert shop.row()["Degraded"] == "False"
    shop.finish(shop.emit(2000), 60)
    assert shop.arrived(2000) == {"missing": 0, "again": 0, "disorder": 0}
    shop.wait_published(2000)
    assert shop.sql("SELECT DISTINCT state FROM outbox.deliveries") == ["PUBLISHED"]
    shop.wait_condition("BacklogHealthy", "True")


def test_nothing_is_written_while_nothing_happens(shop: Shop, installed: Installation) -> None:
    def unchanged_for(reconciles: int) -> bool:
        before, done = shop.resource(), installed.reconciles("OutboxRelay")
        shop.namespace.wait(
            lambda: installed.reconciles("OutboxRelay") >= done + reconciles, 60, "reconciles"
        )
        return shop.resource() == before

    shop.apply()
    shop.wait_settled()
    shop.wait_condition("BacklogHealthy", "True")
    shop.namespace.wait(lambda: unchanged_for(2), 60, "the last change is reported")
    assert unchanged_for(4)

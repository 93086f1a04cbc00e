"""A relay pod is killed under load: another takes over its events, and a new one comes."""

from fixtures.shop import Shop

BATCH = 200
WORKERS = 2


def test_a_pod_killed_under_load_loses_nothing(shop: Shop) -> None:
    # Long times: what the other pod sends twice would be for want of an answer in time.
    shop.apply(
        replicas=2,
        ordering="Key",
        batchSize=BATCH,
        workers=WORKERS,
        lease="20s",
        publisher=shop.to(shop.topic, "15s"),
    )
    shop.wait_settled(2)
    emitting = shop.emit(8000, seconds=12)
    shop.wait_published(1)
    victim = min(shop.relay_pods())
    shop.namespace.kube.core.delete_namespaced_pod(
        victim, shop.namespace.name, grace_period_seconds=0
    )
    shop.namespace.wait(lambda: shop.status()["readyReplicas"] == 1, 60, "one pod that is gone")
    assert shop.condition("Ready")["status"] == "True"  # the other one goes on
    shop.wait_settled(2)
    assert victim not in shop.relay_pods()
    shop.finish(emitting, 60)
    told = shop.arrived(8000)
    assert (told["missing"], told["disorder"]) == (0, 0)
    assert told["again"] <= WORKERS * BATCH  # what it had in flight, at most

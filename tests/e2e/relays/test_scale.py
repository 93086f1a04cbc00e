"""An OutboxRelay is scaled as a Deployment is: by its spec, by kubectl scale, to zero and back."""

from fixtures.shop import Shop


def has_budget(shop: Shop) -> bool:
    return shop.child("PodDisruptionBudget") is not None


def test_a_relay_is_scaled_up_to_zero_and_back(shop: Shop) -> None:
    shop.apply(ordering="Key", **shop.unhurried())
    shop.wait_settled(1)
    assert not has_budget(shop)  # of one pod it would keep nodes from being drained
    shop.scale(2)
    shop.wait_settled(2)
    assert has_budget(shop)
    assert len(shop.relay_pods()) == 2
    scaled = shop.scaled()
    assert (scaled["spec"]["replicas"], scaled["status"]["replicas"]) == (2, 2)
    selector = scaled["status"]["selector"]
    found = shop.namespace.pods(selector)
    assert {pod.metadata.name for pod in found} == shop.relay_pods()

    shop.patch({"replicas": 0})
    shop.wait_condition("Ready", "False", "ScaledToZero")
    shop.namespace.wait(lambda: not shop.namespace.pods(selector), 60, "no pod left")
    shop.namespace.wait(lambda: not has_budget(shop), 30, "no budget for no pods")
    shop.finish(shop.emit(2000), 60)
    assert shop.published() == 0

    shop.scale(1)
    shop.wait_settled(1)
    assert shop.arrived(2000) == {"missing": 0, "again": 0, "disorder": 0}
    assert [message for reason, message in shop.events() if reason == "Scaled"] == [
        "from 1 to 2 pods",
        "from 2 to 0 pods",
        "from 0 to 1 pods",
    ]

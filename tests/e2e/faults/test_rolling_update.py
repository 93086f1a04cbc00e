"""A rolling update under load: nothing lost, order kept, never fewer pods ready than asked for."""

from fixtures.shop import Shop


def test_a_rolling_update_under_load_loses_nothing(shop: Shop) -> None:
    shop.apply(replicas=2, ordering="Key", **shop.unhurried())
    shop.wait_settled(2)
    before = shop.relay_pods()
    emitting = shop.emit(8000, seconds=15)
    shop.wait_published(1)
    shop.patch({"batchSize": 500})
    ready: list[int] = []

    def all_are_new() -> bool:
        deployment = shop.child("Deployment")
        assert deployment is not None
        ready.append(deployment["status"].get("readyReplicas", 0))
        pods = shop.relay_pods()
        return len(pods) == 2 and not pods & before

    shop.namespace.wait(all_are_new, 150, "new pods")
    shop.wait_settled(2)
    assert min(ready) == 2
    shop.finish(emitting, 60)
    # Those that left gave back what they held: nobody sent it twice.
    assert shop.arrived(8000) == {"missing": 0, "again": 0, "disorder": 0}

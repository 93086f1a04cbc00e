"""An OutboxRelay scales itself: up when events wait for too long, down slowly, never beyond."""

from typing import Any

from fixtures.shop import Shop

EVENTS = 6000
"""Of one pod the work of a minute: longer than it takes to see all that is told of it."""
ALONE = 100
"""Events a second of one pod, which is made slow: every batch of so many waits for a second."""
SLOWLY = 6
BACKLOG = f"""
    SELECT outbox.emit('order.placed', n::text, ordering_key => 'key-' || n % 40)
      FROM generate_series(0, {EVENTS - 1}) n
"""


def slow(shop: Shop) -> dict[str, Any]:
    kafka = {**shop.to(shop.topic)["kafka"], "linger": "1s"}
    return {"publisher": {"kafka": kafka}, "batchSize": ALONE, "workers": 1}


def asked(shop: Shop) -> int:
    deployment = shop.child("Deployment")
    assert deployment is not None
    found: int = deployment["spec"]["replicas"]
    return found


def test_a_backlog_brings_more_pods_and_they_go_again(shop: Shop) -> None:
    autoscaling = {
        "maxReplicas": 1,
        "targetLagSeconds": 1,
        "scaleUpStabilization": "1s",
        "scaleDownStabilization": f"{SLOWLY}s",
    }
    shop.apply(**slow(shop), ordering="Key", autoscaling=autoscaling)
    shop.wait_settled(1)
    shop.sql(BACKLOG)
    told = shop.wait_condition("Progressing", "False", "AtMaximum")
    assert "maxReplicas" in told["message"]
    shop.wait_condition("BacklogHealthy", "False", "LagTooHigh")
    assert asked(shop) == 1

    shop.patch({"autoscaling": {"maxReplicas": 2}})
    shop.namespace.wait(lambda: len(shop.relay_pods()) == 2, 60, "two pods")
    assert asked(shop) == 2

    shop.wait_published(EVENTS, 150)
    shop.namespace.wait(lambda: asked(shop) == 1, 90, "one pod asked for")
    (calm,) = shop.sql(
        "SELECT extract(epoch FROM now() - max(published_at)) FROM outbox.deliveries"
    )
    assert float(calm) > SLOWLY / 2  # a report may be some seconds old
    shop.wait_settled(1)
    shop.wait_condition("BacklogHealthy", "True")
    arrived = shop.arrived(EVENTS)
    assert arrived["missing"] == arrived["disorder"] == 0
    # On a machine that stalls it may change its mind in between.
    up, *_, down = [message for reason, message in shop.events() if reason == "Scaled"]
    assert up.startswith("from 1 to 2 pods: the ")
    assert up.endswith(", the target is 1 s")
    assert down.startswith("from 2 to 1 pods: nothing has waited long since ")

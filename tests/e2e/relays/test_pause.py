"""An OutboxRelay is paused and resumed: nothing goes out, everything is kept and seen."""

from fixtures.shop import Shop

AT_ONCE = 15.0
"""Seconds from the patch to the last event that goes out, on a machine that is busy. Others are
emitted for longer than that."""


def reaper_is_suspended(shop: Shop) -> bool:
    reaper = shop.child("CronJob", "orders-reaper")
    return bool(reaper and reaper["spec"]["suspend"])


def test_a_paused_relay_publishes_nothing_and_goes_on_where_it_was(shop: Shop) -> None:
    shop.apply(replicas=2, ordering="Key", **shop.unhurried())
    shop.wait_settled(2)
    emitting = shop.emit(3000, seconds=20)
    shop.wait_published(1)
    (paused_at,) = shop.sql("SELECT now()")
    shop.patch({"paused": True})
    told = shop.wait_condition("Paused", "True", "Paused")
    assert "spec.paused" in told["message"]
    shop.wait_settled(1)
    assert len(shop.relay_pods()) == 1
    assert reaper_is_suspended(shop)
    assert shop.row()["Paused"] is True

    shop.finish(emitting, 60)
    published = shop.published()
    assert published < 3000
    shop.sql(
        "SELECT outbox.emit('order.placed', n::text, ordering_key => 'late')"
        " FROM generate_series(3000, 3999) n"
    )
    shop.namespace.wait(
        lambda: shop.status()["backlog"]["pending"] == 4000 - published, 60, "all that waits"
    )
    assert shop.published() == published
    assert shop.sql("SELECT count(*) FROM outbox.deliveries WHERE state = 'CLAIMED'") == ["0"]
    (took,) = shop.sql(
        f"SELECT extract(epoch FROM max(published_at) - '{paused_at}') FROM outbox.deliveries"
    )
    assert float(took) < AT_ONCE

    shop.patch({"paused": False})
    shop.wait_condition("Paused", "False", "NotPaused")
    shop.wait_settled(2)
    assert reaper_is_suspended(shop)  # now because relays reap by themselves
    assert shop.arrived(4000) == {"missing": 0, "again": 0, "disorder": 0}
    reasons = [reason for reason, _ in shop.events()]
    assert (reasons.count("Paused"), reasons.count("Resumed")) == (1, 1)

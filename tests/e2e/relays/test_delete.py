"""An OutboxRelay is deleted under load, by each policy: its place is kept, or it is forgotten."""

import pytest

from fixtures.breakable import Server, with_own_postgres
from fixtures.cluster import Namespace
from fixtures.installation import Installation
from fixtures.shop import Backends, Shop

EVENTS = 3000
GONE = 90
"""Seconds, at most. Where the definitions are brand-new, Kubernetes takes half a minute to know
whose the children are."""
LATER = "SELECT outbox.emit('order.due', 'x'::text, available_at => now() + interval '1 hour')"
"""Waits, however fast the others go out."""


def test_lc_39_retained_it_goes_on_where_it_was_when_it_is_created_again(shop: Shop) -> None:
    shop.apply(replicas=2, ordering="Key")
    shop.wait_settled(2)
    assert "finalizers" not in shop.resource()["metadata"]
    emitting = shop.emit(EVENTS, seconds=6)
    shop.wait_published(1)
    shop.delete()
    shop.wait_gone(GONE)
    # Nobody is left who could take it back: what is not claimed now was given back.
    assert shop.sql("SELECT count(*) FROM outbox.deliveries WHERE state = 'CLAIMED'") == ["0"]

    shop.finish(emitting, 60)
    shop.finish(shop.emit(2 * EVENTS), 60)
    published = shop.published()
    assert 0 < published <= EVENTS
    waiting = shop.sql("SELECT count(*) FROM outbox.deliveries WHERE state = 'PENDING'")
    assert waiting == [str(2 * EVENTS - published)]

    shop.apply(replicas=2, ordering="Key")
    shop.wait_settled(2)
    arrived = shop.arrived(2 * EVENTS)
    assert arrived["missing"] == arrived["disorder"] == 0
    assert shop.sql("SELECT name FROM outbox.relay") == [f"{shop.namespace.name}/orders"]


def test_forgotten_what_waits_is_dropped_and_the_audit_tells(shop: Shop) -> None:
    shop.apply(replicas=2, ordering="Key", deletionPolicy="Delete")
    shop.wait_settled(2)
    assert shop.resource()["metadata"]["finalizers"] == ["outbox.dev/retire"]
    shop.sql(LATER)
    emitting = shop.emit(EVENTS, seconds=10)
    shop.wait_published(1)
    shop.delete()
    shop.wait_condition("Ready", "False", "Deleting")
    shop.wait_gone(GONE)

    shop.finish(emitting, 60)
    published = shop.published()
    assert shop.sql("SELECT DISTINCT state FROM outbox.deliveries") == ["PUBLISHED"]
    arrived = shop.arrived(published)
    assert arrived["missing"] == arrived["disorder"] == 0
    retired, dropped = shop.sql(
        "SELECT action, actor, relay, reason, coalesce((before->>'count')::integer, 0)"
        " FROM outbox.audit ORDER BY id"
    )
    name = f"{shop.namespace.name}/orders"
    because = f"outbox-operator|{name}|the OutboxRelay was deleted with deletionPolicy: Delete"
    assert retired == f"retire|{because}|0"
    assert dropped.startswith(f"drop|{because}|")
    assert 1 <= int(dropped.rpartition("|")[2]) <= 1 + EVENTS - published
    assert shop.sql("SELECT count(*) FROM outbox.relay WHERE active") == ["0"]


@pytest.fixture
def shop_and_server(
    namespace: Namespace, backends: Backends, installed: Installation
) -> tuple[Shop, Server]:
    own, server = with_own_postgres(namespace, backends)
    return Shop(namespace, own), server


def test_it_stays_while_the_database_is_away_and_says_what_to_do(
    shop_and_server: tuple[Shop, Server],
) -> None:
    shop, postgres = shop_and_server
    shop.apply(deletionPolicy="Delete")
    shop.apply("bills", deletionPolicy="Delete", replicas=0)
    shop.wait_settled()
    shop.wait_condition("Ready", "False", "ScaledToZero", name="bills")

    postgres.hold_down()
    for name in ("orders", "bills"):
        shop.delete(name)
    for name in ("orders", "bills"):
        told = shop.wait_condition("Degraded", "True", "StoreUnreachable", name=name)
        assert "spec.deletionPolicy to Retain" in told["message"]
    shop.patch({"deletionPolicy": "Retain"}, "bills")
    shop.wait_gone(GONE, "bills")
    assert shop.resource()["metadata"]["finalizers"] == ["outbox.dev/retire"]

    postgres.let_up()
    shop.wait_gone(GONE)
    assert shop.sql("SELECT action FROM outbox.audit") == ["retire"]

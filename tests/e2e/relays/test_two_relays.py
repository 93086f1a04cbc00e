"""Two OutboxRelays share a store: each gets all of its own, and nothing of the other's."""

from typing import Any

from fixtures.shop import Shop

TYPES = ("order.placed", "bill.sent", "customer.moved")
EACH = 500
EMIT = f"""
    SELECT outbox.emit((ARRAY{list(TYPES)})[n % 3 + 1], n::text, ordering_key => 'key-' || n % 20)
      FROM generate_series(0, {3 * EACH - 1}) n
"""
DELIVERED = """
    SELECT r.name, e.event_type, d.state, split_part(d.result, '[', 1), count(*)
      FROM outbox.deliveries d
      JOIN outbox.relay r ON r.id = d.relay_id
      JOIN outbox.event e USING (seq)
     GROUP BY 1, 2, 3, 4 ORDER BY 1, 2
"""


def wants(*patterns: str) -> dict[str, Any]:
    return {"subscription": {"eventTypes": list(patterns)}, "ordering": "Key"}


def pending(shop: Shop, name: str) -> int | None:
    """As its status has it."""
    found: int | None = shop.status(name).get("backlog", {}).get("pending")
    return found


def test_each_gets_its_own_while_the_other_is_paused(shop: Shop) -> None:
    orders, bills = shop.topic, f"{shop.topic}_bills"
    shop.make_topic(bills)
    shop.apply("orders", **wants("order.*", "customer.*"))
    shop.apply("bills", **wants("bill.*", "customer.*"), publisher=shop.to(bills), paused=True)
    shop.wait_settled(name="orders")
    shop.wait_settled(name="bills")
    shop.sql(EMIT)

    arrived = shop.arrived(2 * EACH, topic=orders)
    assert arrived["missing"] == arrived["disorder"] == 0
    shop.namespace.wait(lambda: pending(shop, "bills") == 2 * EACH, 60, "what waits for bills")
    shop.namespace.wait(lambda: pending(shop, "orders") == 0, 60, "nothing waits for orders")
    shop.wait_published(2 * EACH)
    first, second = (f"{shop.namespace.name}/{name}" for name in ("bills", "orders"))
    done = [
        f"{second}|customer.moved|PUBLISHED|{orders}|{EACH}",
        f"{second}|order.placed|PUBLISHED|{orders}|{EACH}",
    ]
    waiting = [
        f"{first}|bill.sent|PENDING||{EACH}",
        f"{first}|customer.moved|PENDING||{EACH}",
    ]
    assert shop.sql(DELIVERED) == waiting + done

    shop.patch({"paused": False}, "bills")
    arrived = shop.arrived(2 * EACH, topic=bills)
    assert arrived["missing"] == arrived["disorder"] == 0
    shop.wait_settled(name="bills")
    shop.wait_published(4 * EACH)
    published = [line.replace("PENDING|", f"PUBLISHED|{bills}") for line in waiting]
    assert shop.sql(DELIVERED) == published + done

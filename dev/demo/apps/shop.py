"""
A service that takes orders until it is asked to stop. An order and its event are one transaction:
both are committed, or neither.
"""

import os
import random
import signal
import threading

import psycopg

PAUSE = 1 / float(os.environ["ORDERS_PER_SECOND"])
CUSTOMERS = 50
DECLINED = 0.1
"""Of the payments."""

ORDER = "INSERT INTO orders (customer, total) VALUES (%s, %s) RETURNING id"
EVENT = """
    SELECT outbox.emit(
        'order.placed',
        jsonb_build_object('order', %(order)s::bigint, 'customer', %(customer)s::text),
        ordering_key => %(customer)s::text)
"""


def place_order(conn: psycopg.Connection[tuple[int]]) -> bool:
    """Whether it was; if not, nothing is left of it."""
    declined = random.random() < DECLINED
    customer = f"customer-{random.randrange(CUSTOMERS)}"
    with conn.transaction():
        made = conn.execute(ORDER, (customer, random.randrange(5, 500))).fetchone()
        assert made is not None
        conn.execute(EVENT, {"order": made[0], "customer": customer})
        if declined:
            raise psycopg.Rollback  # takes the order back, and with it the event
    return not declined


def main() -> None:
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    placed = declined = 0
    with psycopg.connect(os.environ["DSN"], autocommit=True) as conn:
        while not stop.wait(PAUSE):
            if place_order(conn):
                placed += 1
            else:
                declined += 1
            if (placed + declined) % 100 == 0:
                print(f"{placed} orders placed, {declined} declined and rolled back")


if __name__ == "__main__":
    main()

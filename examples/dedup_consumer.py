"""
A consumer on which every event takes effect once, however often it arrives.

Delivery is at least once, so the same event may come twice: after a crash, after an acknowledgement
that was lost, after a replay. Its id is always the same. This consumer keeps the ids it has seen in
a table of its own database, and writes id and effect in one transaction: both, or neither.

    export CONSUMER_DSN=postgresql://postgres@127.0.0.1:5432/postgres
    .venv/bin/python examples/dedup_consumer.py
"""

import os
import sys
from collections.abc import Callable
from typing import Any

import psycopg
from confluent_kafka import Consumer, Message

Connection = psycopg.Connection[Any]

TABLES = """
    CREATE TABLE IF NOT EXISTS seen_event (
        event_id uuid        PRIMARY KEY,
        seen_at  timestamptz NOT NULL DEFAULT now());
    CREATE TABLE IF NOT EXISTS event_count (
        event_type text   PRIMARY KEY,
        events     bigint NOT NULL);
"""

# Two consumers with the same event at the same time: the second waits here for the first.
REMEMBER = "INSERT INTO seen_event (event_id) VALUES (%s) ON CONFLICT DO NOTHING"

COUNT = """
    INSERT INTO event_count AS c (event_type, events) VALUES (%s, 1)
    ON CONFLICT (event_type) DO UPDATE SET events = c.events + 1
"""


def once(conn: Connection, event_id: str, effect: Callable[[], object]) -> bool:
    """Have the effect, unless this event has had it before. True if it had it now."""
    with conn.transaction():
        if conn.execute(REMEMBER, (event_id,)).rowcount == 0:
            return False
        effect()  # on the same connection, hence in the same transaction
    return True


def header(message: Message, *names: str) -> str:
    """The relay's own headers come last: of several with one name, the last one counts."""
    found = {name: value for name, value in list(message.headers() or []) if name in names}
    value = next(found[name] for name in names if name in found)
    return value.decode() if isinstance(value, bytes) else str(value)


def consume(conn: Connection, consumer: Consumer) -> None:
    conn.execute(TABLES)
    while True:
        message = consumer.poll(1.0)
        if message is None:
            continue
        if message.error():
            print(f"waiting: {message.error()}", file=sys.stderr)
            continue
        event_id = header(message, "outbox-event-id", "ce_id")
        event_type = header(message, "outbox-event-type", "ce_type")

        def effect(event_type: str = event_type) -> None:
            conn.execute(COUNT, (event_type,))

        had = once(conn, event_id, effect)
        # After the transaction, never before: a crash in between means the event comes again.
        consumer.commit(message=message, asynchronous=False)
        place = f"{message.topic()}[{message.partition()}]@{message.offset()}"
        print("taken  " if had else "ignored", event_id, event_type, place, flush=True)


def main() -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": os.environ.get("KAFKA", "127.0.0.1:9092"),
            "group.id": "dedup-example",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([os.environ.get("TOPIC", "orders")])
    dsn = os.environ.get("CONSUMER_DSN") or os.environ["OUTBOX_DSN"]
    with psycopg.connect(dsn, autocommit=True) as conn:
        try:
            consume(conn, consumer)
        except KeyboardInterrupt:
            pass
        finally:
            consumer.close()


if __name__ == "__main__":
    main()

"""
`make demo`: the main job, seen once from end to end on throwaway servers.

Orders are placed in PostgreSQL, each in one transaction with its event; two relays publish them in
order; one of them is killed under load; and every order is in Kafka. Exits non-zero if not.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import yaml
from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from outbox_relay.store.migrate import migrate
from services import Kafka, Postgres, scratch, wait_until
from services.kafka import QUIET

ORDERS = 3000
CUSTOMERS = 50


def say(text: str) -> None:
    print(f"[{time.monotonic() - STARTED:5.1f} s] {text}", flush=True)


STARTED = time.monotonic()


@contextmanager
def relay(folder: Path, config: Path, dsn: str, pod: str) -> Iterator[subprocess.Popen[bytes]]:
    with (folder / f"{pod}.log").open("wb") as log:
        child = subprocess.Popen(
            [sys.executable, "-m", "outbox_relay.cli.main", "run", "--config", str(config)],
            env={**os.environ, "OUTBOX_DSN": dsn, "POD_NAME": pod},
            stdout=log,
            stderr=log,
        )
    try:
        yield child
    finally:
        child.terminate()
        child.wait(60)


def place_orders(dsn: str) -> None:
    with psycopg.connect(dsn) as conn:
        conn.execute("CREATE TABLE orders (id int PRIMARY KEY, customer int NOT NULL)")
        conn.commit()
        for number in range(ORDERS):
            customer = number % CUSTOMERS
            conn.execute("INSERT INTO orders VALUES (%s, %s)", (number, customer))
            conn.execute(
                "SELECT outbox.emit('order.placed', %s::jsonb, %s)",
                (json.dumps({"order": number}), f"customer-{customer}"),
            )
            conn.commit()


def read_all(bootstrap: str) -> dict[str, list[int]]:
    """Orders per customer as they arrived; of duplicates the first counts."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "demo", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe(["orders"])
    seen: dict[str, list[int]] = {}

    def enough() -> bool:
        for message in consumer.consume(500, 0.5):
            key, value = message.key(), message.value()
            if key and value and not message.error():
                orders = seen.setdefault(key.decode(), [])
                number = json.loads(value)["order"]
                if number not in orders:
                    orders.append(number)
        return sum(map(len, seen.values())) >= ORDERS

    wait_until(enough, 60, f"{ORDERS} orders in Kafka")
    consumer.close()
    return seen


def main() -> int:
    say("starting PostgreSQL and Kafka in a throwaway folder")
    with scratch() as folder, Postgres(folder / "pg") as postgres, Kafka(folder / "kafka") as kafka:
        dsn = postgres.create_database("shop")
        report = migrate(dsn)
        say(f"the outbox schema has version {report.after}")
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap, **QUIET})
        admin.create_topics([NewTopic("orders", 6, 1)])["orders"].result(30)
        config = folder / "relay.yaml"
        config.write_text(
            yaml.safe_dump(
                {
                    "name": "orders",
                    "ordering": "Key",
                    "lease": "4s",
                    "batchSize": 100,
                    "publisher": {
                        "kafka": {
                            "bootstrapServers": kafka.bootstrap,
                            "topic": "orders",
                            "deliveryTimeout": "3s",
                        }
                    },
                    "http": {"host": "127.0.0.1", "port": 0},
                }
            )
        )
        with relay(folder, config, dsn, "pod-1") as first, relay(folder, config, dsn, "pod-2"):
            say("two relays are starting, in order by customer")
            producer = subprocess.Popen(
                [sys.executable, "-c", f"import demo; demo.place_orders({dsn!r})"],
                cwd=Path(__file__).parent,
            )
            say(f"placing {ORDERS} orders, each with its event in one transaction")
            with psycopg.connect(dsn, autocommit=True) as conn:

                def count(state: str) -> int:
                    row = conn.execute(
                        "SELECT count(*) FROM outbox.delivery WHERE state = %s::outbox.state",
                        (state,),
                    ).fetchone()
                    return int(row[0]) if row else 0

                wait_until(lambda: count("PUBLISHED") > ORDERS // 5, 60, "events flow")
                first.kill()
                say(f"{count('PUBLISHED')} published; pod-1 is killed under load")
                producer.wait(120)
                wait_until(lambda: count("PUBLISHED") == ORDERS, 60, "all published")
                say(f"all {ORDERS} orders are PUBLISHED")
        arrived = read_all(kafka.bootstrap)
        ordered = all(orders == sorted(orders) for orders in arrived.values())
        total = sum(map(len, arrived.values()))
        say(f"in Kafka: {total} orders of {len(arrived)} customers, in order: {ordered}")
        if total == ORDERS and ordered and producer.returncode == 0:
            say("nothing lost, order kept. Next: docs/producers.md, docs/operations.md")
            return 0
        say("that is not what was promised: please report it")
        return 1


if __name__ == "__main__":
    sys.exit(main())

"""
A service that writes an invoice for each order, which it knows by its event alone.

Events come at least once: an order that is known already gets no second invoice. The invoices are
committed before Kafka learns that their events were read, so a crash in between repeats some.
"""

import json
import os
import signal
import threading

import psycopg
from confluent_kafka import Consumer, KafkaException, Message
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import KafkaError, NewTopic

TOPIC = "order.placed"
KAFKA: dict[str, str | int | float | bool] = {"bootstrap.servers": os.environ["KAFKA"]}

INVOICE = """
    INSERT INTO invoices (order_id, customer) VALUES (%(order)s, %(customer)s)
    ON CONFLICT (order_id) DO UPDATE SET events = invoices.events + 1
"""


def have_topic() -> None:
    admin = AdminClient(KAFKA)  # kept while it works: without it the request is dropped
    try:
        admin.create_topics([NewTopic(TOPIC, num_partitions=6)])[TOPIC].result(60)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise


def read(messages: list[Message]) -> list[dict[str, object]]:
    """The orders; events of other types are not billing's business."""
    orders = []
    for message in messages:
        if error := message.error():
            raise KafkaException(error)
        headers = dict(message.headers() or ())
        if headers["outbox-event-type"] == b"order.placed":
            orders.append(json.loads(message.value() or b""))
    return orders


def main() -> None:
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    have_topic()
    consumer = Consumer(
        {
            **KAFKA,
            "group.id": "billing",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([TOPIC])
    print(f"listening to {TOPIC}")
    with psycopg.connect(os.environ["DSN"], autocommit=True) as conn:
        while not stop.is_set():
            orders = read(consumer.consume(500, timeout=0.5))
            if orders:
                with conn.transaction(), conn.cursor() as cursor:
                    cursor.executemany(INVOICE, orders)
                consumer.commit(asynchronous=False)
                print(f"{len(orders)} events, the last of order {orders[-1]['order']}")
    consumer.close()


if __name__ == "__main__":
    main()

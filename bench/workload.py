"""
The work: numbered events of 300 bytes over a number of keys, the same for every system.

An event's number is at the start of its payload, and its key follows from its number: so a topic
can be checked whichever system wrote it. `produce` and `consume` run in processes of their own, so
that neither waits for the other's interpreter.
"""

import threading
import time
from array import array
from collections.abc import Sequence

import psycopg
from confluent_kafka import Consumer, TopicPartition

from dev.services.kafka import QUIET

PAYLOAD_BYTES = 300
DIGITS = 12

PAYLOAD_SQL = (
    f"convert_to(lpad(n::text, {DIGITS}, '0') || repeat('x', {PAYLOAD_BYTES - DIGITS}), 'UTF8')"
)
KEY_SQL = "'key-' || n %% %(keys)s"
NUMBERS_SQL = "generate_series(%(first)s::bigint, %(first)s::bigint + %(events)s - 1) AS n"
"""For `INSERT ... SELECT`, with the parameters first, events and keys."""

CONNECTIONS = 5
"""A single one could not commit 500 times per second on a slow disk. All numbers of keys are
multiples of it, so that a key's events always come from the same connection, in order."""


def payload_of(n: int) -> bytes:
    return b"%0*d" % (DIGITS, n) + b"x" * (PAYLOAD_BYTES - DIGITS)


def number_of(payload: bytes) -> int:
    return int(payload[:DIGITS])


def key_of(n: int, keys: int) -> int:
    return n % keys


def produce(
    dsn: str, insert: str, first: int, events: int, keys: int, rate: float, begin_ns: int
) -> "array[int]":
    """
    One transaction per event, at a steady rate; returns when each commit returned, on the system's
    clock.

    The schedule does not wait for late commits: a stall delays events, but does not cancel them.
    `insert` has the parameters key and payload.
    """
    committed = array("q", bytes(8 * events))
    failures: list[BaseException] = []

    def work(mine: int) -> None:
        try:
            with psycopg.connect(dsn, autocommit=True, application_name="bench-producer") as conn:
                for i in range(mine, events, CONNECTIONS):
                    n = first + i
                    parameters = {"key": f"key-{key_of(n, keys)}", "payload": payload_of(n)}
                    wait = begin_ns + i * 1e9 / rate - time.monotonic_ns()
                    if wait > 0:
                        time.sleep(wait / 1e9)
                    conn.execute(insert, parameters, prepare=True)
                    committed[i] = time.monotonic_ns()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(mine,)) for mine in range(CONNECTIONS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return committed


def consume(
    bootstrap: str, topic: str, offsets: Sequence[int], first: int, events: int, until_ns: int
) -> "array[int]":
    """When each event arrived, on the system's clock; 0 if it did not arrive by `until_ns`."""
    received = array("q", bytes(8 * events))
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "bench", **QUIET})
    consumer.assign([TopicPartition(topic, p, offset) for p, offset in enumerate(offsets)])
    missing = events
    while missing and time.monotonic_ns() < until_ns:
        # One by one: consume(many) would hold back the first until there are many, or time out.
        message = consumer.poll(0.1)
        if message is None or message.error():
            continue
        now = time.monotonic_ns()
        value = message.value()
        assert value is not None
        i = number_of(value) - first
        if 0 <= i < events and not received[i]:
            received[i] = now
            missing -= 1
    consumer.close()
    return received

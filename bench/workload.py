"""
The work: numbered events of 300 bytes over a number of keys, the same for every system.

An event's number is at the start of its payload, and its key follows from its number: so what
arrived can be checked whichever system sent it. `produce` runs in a process of its own, so that it
does not wait for another's interpreter.
"""

import threading
import time
from array import array
from dataclasses import dataclass

import psycopg

PAYLOAD_BYTES = 300
DIGITS = 12

TEXT_SQL = (
    f"%(before)s::text || lpad(n::text, {DIGITS}, '0')"
    f" || repeat('x', {PAYLOAD_BYTES - DIGITS}) || %(after)s::text"
)
PAYLOAD_SQL = f"convert_to({TEXT_SQL}, 'UTF8')"
KEY_SQL = "'key-' || n %% %(keys)s"
TENANT_SQL = "(n %% nullif(%(tenants)s::bigint, 0) + 1)::text"
NUMBERS_SQL = (
    "generate_series(%(first)s::bigint,"
    " %(first)s::bigint + (%(events)s - 1) * %(step)s::bigint, %(step)s::bigint) AS n"
)
"""For `INSERT ... SELECT`, with the parameters of `Shape.parameters`."""

CONNECTIONS = 5
"""A single one could not commit 500 times per second on a slow disk. All numbers of keys are
multiples of it, so that a key's events always come from the same connection, in order."""


@dataclass(frozen=True)
class Shape:
    """What a destination needs an event to look like."""

    before: str = ""
    after: str = ""
    """Around the payload that all others have."""
    tenants: int = 0
    """If not 0, events belong to the tenants 1 to this number, in turn."""

    def parameters(
        self, events: int, keys: int, first: int = 0, step: int = 1
    ) -> dict[str, object]:
        return {
            **{"first": first, "events": events, "keys": keys, "step": step},
            **{"before": self.before, "after": self.after, "tenants": self.tenants},
        }

    def payload_of(self, n: int) -> bytes:
        return self.before.encode() + payload_of(n) + self.after.encode()


PLAIN = Shape()


def payload_of(n: int) -> bytes:
    return b"%0*d" % (DIGITS, n) + b"x" * (PAYLOAD_BYTES - DIGITS)


def number_of(payload: bytes) -> int:
    return int(payload[:DIGITS])


def key_of(n: int, keys: int) -> int:
    return n % keys


def produce(
    dsn: str,
    insert: str,
    shape: Shape,
    first: int,
    events: int,
    keys: int,
    rate: float,
    begin_ns: int,
    per_transaction: int = 1,
) -> "array[int]":
    """
    Transactions of so many events, at a steady rate; returns when each commit returned, on the
    system's clock.

    The schedule does not wait for late commits: a stall delays events, but does not cancel them.
    `insert` has the parameters key and payload; for several events in one transaction those of
    `Shape.parameters`.
    """
    committed = array("q", bytes(8 * events))
    failures: list[BaseException] = []

    def work(mine: int) -> None:
        try:
            with psycopg.connect(dsn, autocommit=True, application_name="bench-producer") as conn:
                for i in range(mine, events, CONNECTIONS * per_transaction):
                    n = first + i
                    together = range(i, min(i + CONNECTIONS * per_transaction, events), CONNECTIONS)
                    parameters: dict[str, object] = (
                        {"key": f"key-{key_of(n, keys)}", "payload": shape.payload_of(n)}
                        if per_transaction == 1
                        else shape.parameters(len(together), keys, n, CONNECTIONS)
                    )
                    wait = begin_ns + together[-1] * 1e9 / rate - time.monotonic_ns()
                    if wait > 0:
                        time.sleep(wait / 1e9)
                    conn.execute(insert, parameters, prepare=True)
                    now = time.monotonic_ns()
                    for j in together:
                        committed[j] = now
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

"""
Emit COUNT events over KEYS keys, in small transactions, spread over about SECONDS.

As a service that is careful: while the database is away it tries again, and its idempotency keys
make one event of what was committed without an answer.
"""

import os
import sys
import threading
import time

import psycopg

count, keys, seconds = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
WRITERS = 2
PER_TRANSACTION = 10


def write(mine: int) -> None:
    # Each writer has keys of its own, so that the order it commits in is the order of the numbers.
    numbers = [n for n in range(count) if n % keys % WRITERS == mine]
    begin = time.monotonic()
    done = 0
    while done < len(numbers):
        try:
            with psycopg.connect(os.environ["OUTBOX_DSN"], autocommit=True) as conn:
                while done < len(numbers):
                    emit(conn, numbers[done : done + PER_TRANSACTION])
                    done += PER_TRANSACTION
                    due = begin + seconds * done / len(numbers)
                    time.sleep(max(0.0, due - time.monotonic()))
        except psycopg.OperationalError:
            time.sleep(0.2)


def emit(conn: psycopg.Connection, numbers: list[int]) -> None:
    with conn.transaction():
        for n in numbers:
            conn.execute(
                "SELECT outbox.emit('order.placed', %s::text, ordering_key => %s,"
                " idempotency_key => %s)",
                (str(n), f"key-{n % keys}", str(n)),
            )


writers = [threading.Thread(target=write, args=(mine,)) for mine in range(WRITERS)]
for writer in writers:
    writer.start()
for writer in writers:
    writer.join()
print(f"emitted {count}")

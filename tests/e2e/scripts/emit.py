"""Emit COUNT events over KEYS keys, in small transactions, spread over about SECONDS."""

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
    with psycopg.connect(os.environ["OUTBOX_DSN"], autocommit=True) as conn:
        for start in range(0, len(numbers), PER_TRANSACTION):
            with conn.transaction():
                for n in numbers[start : start + PER_TRANSACTION]:
                    conn.execute(
                        "SELECT outbox.emit('order.placed', %s::text, ordering_key => %s)",
                        (str(n), f"key-{n % keys}"),
                    )
            time.sleep(max(0.0, begin + seconds * start / len(numbers) - time.monotonic()))


writers = [threading.Thread(target=write, args=(mine,)) for mine in range(WRITERS)]
for writer in writers:
    writer.start()
for writer in writers:
    writer.join()
print(f"emitted {count}")

"""Count the outbox's events on Spark: each task reads its range of seqs, and says where it ran."""

import itertools
import json
import os
import socket
import time

import psycopg
from pyspark.sql import SparkSession

TASKS = 8


def count(range_: tuple[int, int]) -> tuple[str, int]:
    time.sleep(1)  # longer than a task takes to be handed out: so every executor gets some
    with psycopg.connect(os.environ["OUTBOX_DSN"]) as conn:
        found = conn.execute(
            "SELECT count(*) FROM outbox.event WHERE seq > %s AND seq <= %s", range_
        ).fetchone()
    assert found is not None
    return socket.gethostname(), int(found[0])


with psycopg.connect(os.environ["OUTBOX_DSN"]) as connection:
    row = connection.execute("SELECT max(seq) FROM outbox.event").fetchone()
assert row is not None
last = int(row[0])
cuts = [last * i // TASKS for i in range(TASKS + 1)]
spark = SparkSession.builder.getOrCreate()
ranges = list(itertools.pairwise(cuts))
counted = spark.sparkContext.parallelize(ranges, TASKS).map(count).collect()
spark.stop()
print(
    json.dumps({"events": sum(n for _, n in counted), "executors": sorted({w for w, _ in counted})})
)

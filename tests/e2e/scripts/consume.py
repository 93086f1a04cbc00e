"""
Read TOPIC from the beginning until COUNT different events are there, at most for SECONDS; then
print, as JSON, how many are missing, how many came again, and how many came after a later event
of their key (first arrivals only).
"""

import json
import os
import sys
import time
import uuid

from confluent_kafka import Consumer

topic, count, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
consumer = Consumer(
    {
        "bootstrap.servers": os.environ["OUTBOX_KAFKA"],
        "group.id": f"check-{uuid.uuid4()}",  # alone: another would take half of the partitions
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
)
consumer.subscribe([topic])
seen: set[int] = set()
last: dict[bytes, int] = {}
again = disorder = 0
until = time.monotonic() + seconds
while len(seen) < count and time.monotonic() < until:
    for message in consumer.consume(500, timeout=0.5):
        if message.error():
            raise SystemExit(str(message.error()))
        value, key = message.value(), message.key()
        assert value is not None
        assert key is not None
        number = int(value)
        if number in seen:
            again += 1
            continue
        seen.add(number)
        disorder += number < last.get(key, -1)
        last[key] = number
consumer.close()
print(json.dumps({"missing": count - len(seen), "again": again, "disorder": disorder}))

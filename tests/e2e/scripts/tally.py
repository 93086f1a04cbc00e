"""
Read all that is in TOPIC now and print, as JSON: how many messages, how many different events, how
many of them with a number that is not below COUNT, and how many came after a later event of their
key (first arrivals only).
"""

import json
import os
import sys

from confluent_kafka import Consumer, TopicPartition

topic, count = sys.argv[1], int(sys.argv[2])
consumer = Consumer(
    {
        "bootstrap.servers": os.environ["OUTBOX_KAFKA"],
        "group.id": "tally",
        "enable.auto.commit": False,
        "enable.partition.eof": False,
    }
)
partitions = consumer.list_topics(topic, 30).topics[topic].partitions
ends = {p: consumer.get_watermark_offsets(TopicPartition(topic, p), 30)[1] for p in partitions}
left = {p for p, end in ends.items() if end > 0}
consumer.assign([TopicPartition(topic, p, 0) for p in left])
seen: set[int] = set()
last: dict[bytes, int] = {}
messages = outside = disorder = 0
while left:
    for message in consumer.consume(500, timeout=5):
        if message.error():
            raise SystemExit(str(message.error()))
        partition, offset = message.partition(), message.offset()
        value, key = message.value(), message.key()
        assert partition is not None
        assert offset is not None
        assert value is not None
        assert key is not None
        if offset >= ends[partition]:
            continue
        if offset == ends[partition] - 1:
            left.discard(partition)
        messages += 1
        number = int(value)
        if number in seen:
            continue
        seen.add(number)
        outside += number >= count
        disorder += number < last.get(key, -1)
        last[key] = number
consumer.close()
told = {"messages": messages, "different": len(seen), "outside": outside, "disorder": disorder}
print(json.dumps(told))

"""Print how many messages were ever written to TOPIC, again or not."""

import os
import sys

from confluent_kafka import Consumer, TopicPartition

topic = sys.argv[1]
consumer = Consumer({"bootstrap.servers": os.environ["OUTBOX_KAFKA"], "group.id": "count"})
partitions = consumer.list_topics(topic, 30).topics[topic].partitions
print(sum(consumer.get_watermark_offsets(TopicPartition(topic, p), 30)[1] for p in partitions))
consumer.close()

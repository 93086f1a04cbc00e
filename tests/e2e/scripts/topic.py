"""Create a topic: NAME PARTITIONS."""

import os
import sys

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

name, partitions = sys.argv[1], int(sys.argv[2])
admin = AdminClient({"bootstrap.servers": os.environ["OUTBOX_KAFKA"]})
admin.create_topics([NewTopic(name, num_partitions=partitions)])[name].result(30)

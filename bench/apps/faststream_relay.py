# mypy: ignore-errors
"""
A relay as faststream-outbox's own documentation builds it.

Runs in that package's environment, not in ours (so mypy does not see what it imports):
`faststream_relay.py create|run DSN BOOTSTRAP TOPIC SETTINGS`.
"""

import json
import logging
import sys

import uvloop
from faststream import FastStream
from faststream.kafka import KafkaBroker, KafkaResponse
from faststream_outbox import OutboxBroker, make_outbox_table
from faststream_outbox.annotations import OutboxMessage
from sqlalchemy import MetaData
from sqlalchemy.ext.asyncio import create_async_engine

verb, dsn, bootstrap, topic, given = sys.argv[1:]
settings = json.loads(given)
subscriber = settings.get("subscriber", {})

metadata = MetaData()
table = make_outbox_table(metadata, table_name="outbox")
# Each worker holds a connection, the fetch another.
engine = create_async_engine(dsn, pool_size=subscriber.get("max_workers", 1) + 8)


async def create() -> None:
    async with engine.begin() as conn:
        await conn.run_sync(metadata.create_all)


def relay() -> FastStream:
    # A log line per event costs as much as the event.
    outbox = OutboxBroker(engine, outbox_table=table, log_level=logging.DEBUG)
    kafka = KafkaBroker(bootstrap, acks="all", log_level=logging.DEBUG, **settings.get("kafka", {}))

    @kafka.publisher(topic)
    @outbox.subscriber("bench", **subscriber)
    async def relay(body: bytes, message: OutboxMessage) -> KafkaResponse:
        return KafkaResponse(body, key=message.headers["key"].encode())

    return FastStream(outbox, on_startup=[kafka.connect])


uvloop.run(create() if verb == "create" else relay().run())

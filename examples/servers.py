"""
Throwaway servers for the quick start: PostgreSQL on port 5432 and Kafka on port 9092.

    make dev
    .venv/bin/python examples/servers.py

Both keep their data in a temporary folder and are gone, data and all, when this ends (Ctrl-C).
"""

import signal
from argparse import ArgumentParser
from contextlib import suppress

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from services import Kafka, Postgres, scratch


def main() -> None:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--postgres-port", type=int, default=5432)
    parser.add_argument("--kafka-port", type=int, default=9092)
    parser.add_argument("--topic", action="append", help="created empty; default: orders")
    chosen = parser.parse_args()
    with scratch() as folder:
        postgres, kafka = Postgres(folder / "postgres"), Kafka(folder / "kafka")
        postgres.port, kafka.port = chosen.postgres_port, chosen.kafka_port
        with postgres, kafka:
            admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
            topics = [NewTopic(t, 6, 1) for t in chosen.topic or ["orders"]]
            for created in admin.create_topics(topics).values():
                created.result()
            print(f"PostgreSQL  export OUTBOX_DSN={postgres.dsn()}")
            print(f"Kafka       {kafka.bootstrap}")
            print("Ctrl-C ends both.", flush=True)
            signal.pause()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with suppress(KeyboardInterrupt):
        main()

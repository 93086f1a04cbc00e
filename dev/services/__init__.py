"""
Real servers as child processes, for tests, bench and examples: PostgreSQL, PgBouncer, and brokers.

    with scratch() as folder, Postgres(folder / "postgres") as postgres:
        psycopg.connect(postgres.dsn())

Each is a context manager, keeps its port and its data from one start to the next, logs into its
own folder and dies with the process that started it. `dev/setup` installs what they run.
"""

from dev.services.debezium import Debezium
from dev.services.elasticmq import ElasticMq
from dev.services.exim import Exim
from dev.services.kafka import Kafka, SecureListener
from dev.services.nats import Nats
from dev.services.nginx import Nginx
from dev.services.pgbouncer import PgBouncer
from dev.services.postgres import Postgres
from dev.services.process import Server, ServerError, scratch
from dev.services.rabbitmq import RabbitMQ
from dev.services.redis import Redis
from dev.services.waiting import wait_until

__all__ = [
    "Debezium",
    "ElasticMq",
    "Exim",
    "Kafka",
    "Nats",
    "Nginx",
    "PgBouncer",
    "Postgres",
    "RabbitMQ",
    "Redis",
    "SecureListener",
    "Server",
    "ServerError",
    "scratch",
    "wait_until",
]

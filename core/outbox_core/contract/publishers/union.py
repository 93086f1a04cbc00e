"""
All kinds of publisher: exactly one is chosen.

The name of a field is the name of its kind everywhere: in `relay.yaml`, in an OutboxRelay, and as
the package below `outbox_relay.publishers`.
"""

from datetime import timedelta
from typing import Self

from pydantic import model_validator

from outbox_core.contract.publishers.common import PublisherKind
from outbox_core.contract.publishers.http import HttpSettings
from outbox_core.contract.publishers.kafka import KafkaSettings
from outbox_core.contract.publishers.nats import NatsSettings
from outbox_core.contract.publishers.rabbitmq import RabbitMQSettings
from outbox_core.contract.publishers.redis import RedisSettings
from outbox_core.contract.publishers.smtp import SmtpSettings
from outbox_core.contract.publishers.sqs import SqsSettings
from outbox_core.contract.values import Settings


class PublisherUnion(Settings):
    """Base of `PublisherSettings`, and of its twin with Secrets in an OutboxRelay: every field is
    a kind, or None."""

    @classmethod
    def kinds(cls) -> list[str]:
        return list(cls.model_fields)

    @classmethod
    def names(cls) -> str:
        return ", ".join(cls.kinds())

    @model_validator(mode="after")
    def exactly_one(self) -> Self:
        if sum(getattr(self, kind) is not None for kind in self.kinds()) != 1:
            raise ValueError(f"name exactly one publisher: {self.names()}")
        return self

    @property
    def kind(self) -> str:
        return next(kind for kind in self.kinds() if getattr(self, kind) is not None)

    @property
    def chosen(self) -> PublisherKind:
        found = getattr(self, self.kind)
        assert isinstance(found, PublisherKind)
        return found

    @property
    def timeout(self) -> timedelta:
        return self.chosen.delivery_timeout


class PublisherSettings(PublisherUnion):
    kafka: KafkaSettings | None = None
    """Apache Kafka, or a broker that speaks its protocol."""
    http: HttpSettings | None = None
    """HTTP endpoints: webhooks, APIs, systems of record."""
    nats: NatsSettings | None = None
    """NATS JetStream."""
    rabbitmq: RabbitMQSettings | None = None
    """RabbitMQ, by AMQP 0-9-1."""
    redis: RedisSettings | None = None
    """Redis Streams."""
    smtp: SmtpSettings | None = None
    """E-mail, by a mail server that speaks SMTP."""
    sqs: SqsSettings | None = None
    """Amazon SQS, or a server that speaks its protocol."""

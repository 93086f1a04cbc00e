"""All kinds of publisher of an OutboxRelay, and their rules. The kinds are the contract's."""

from collections.abc import Iterator, Mapping
from typing import get_args

from outbox_core.contract.publishers.common import PublisherKind
from outbox_core.contract.publishers.union import PublisherUnion
from outbox_core.contract.settings import no_order
from outbox_operator.relay.spec.publishers.common import RULES as COMMON_RULES
from outbox_operator.relay.spec.publishers.http import RULES as HTTP_RULES
from outbox_operator.relay.spec.publishers.http import Http
from outbox_operator.relay.spec.publishers.kafka import RULES as KAFKA_RULES
from outbox_operator.relay.spec.publishers.kafka import Kafka
from outbox_operator.relay.spec.publishers.nats import RULES as NATS_RULES
from outbox_operator.relay.spec.publishers.nats import Nats
from outbox_operator.relay.spec.publishers.rabbitmq import RULES as RABBITMQ_RULES
from outbox_operator.relay.spec.publishers.rabbitmq import RabbitMQ
from outbox_operator.relay.spec.publishers.redis import RULES as REDIS_RULES
from outbox_operator.relay.spec.publishers.redis import Redis
from outbox_operator.relay.spec.publishers.smtp import RULES as SMTP_RULES
from outbox_operator.relay.spec.publishers.smtp import Smtp
from outbox_operator.relay.spec.publishers.sqs import HOLDS_ORDER as SQS_HOLDS_ORDER
from outbox_operator.relay.spec.publishers.sqs import RULES as SQS_RULES
from outbox_operator.relay.spec.publishers.sqs import Sqs
from outbox_operator.shared.rules import Rule, Rules, length


class PublisherSpec(PublisherUnion):
    kafka: Kafka | None = None
    """Apache Kafka, or a broker that speaks its protocol."""
    http: Http | None = None
    """HTTP endpoints: webhooks, APIs, systems of record."""
    nats: Nats | None = None
    """NATS JetStream."""
    rabbitmq: RabbitMQ | None = None
    """RabbitMQ, by AMQP 0-9-1."""
    redis: Redis | None = None
    """Redis Streams."""
    smtp: Smtp | None = None
    """E-mail, by a mail server that speaks SMTP."""
    sqs: Sqs | None = None
    """Amazon SQS, or a server that speaks its protocol."""


HOLDS_ORDER: Mapping[str, str] = {"sqs": SQS_HOLDS_ORDER}
"""By kind, `PublisherKind.holds_order` in CEL where it depends on the settings: over
`self.publisher.<kind>`."""

RULES: Rules = {
    PublisherSpec: (
        Rule(
            f"[{', '.join(f'has(self.{kind})' for kind in PublisherSpec.kinds())}]"
            ".exists_one(given, given)",
            f"name exactly one publisher: {PublisherSpec.names()}",
        ),
    ),
    **COMMON_RULES,
    **KAFKA_RULES,
    **HTTP_RULES,
    **NATS_RULES,
    **RABBITMQ_RULES,
    **REDIS_RULES,
    **SMTP_RULES,
    **SQS_RULES,
}


def rules_of_behaviour(
    union: type[PublisherUnion] = PublisherSpec, holds_order: Mapping[str, str] = HOLDS_ORDER
) -> Iterator[Rule]:
    """Rules of a spec with one of these publishers: what `Behaviour` demands of any."""
    for kind in union.kinds():
        absent, timeout = f"!has(self.publisher.{kind})", f"self.publisher.{kind}.deliveryTimeout"
        yield Rule(
            f"{absent} || {length('self.lease')} > {length(timeout)}",
            "lease must be longer than the publisher's deliveryTimeout: raise the one or lower "
            "the other",
        )
        yield Rule(
            f"{absent} || !has(self.drainTimeout) || "
            f"{length('self.drainTimeout')} >= {length(timeout)}",
            "drainTimeout must not be shorter than the publisher's deliveryTimeout, or what is in "
            "flight at the stop is sent twice",
        )
        if why := kind_model(union, kind).why_unordered:
            held = f" || {holds_order[kind]}" if kind in holds_order else ""
            yield Rule(f"self.ordering != 'Key' || {absent}{held}", no_order(kind, why))


def kind_model(union: type[PublisherUnion], kind: str) -> type[PublisherKind]:
    (model,) = (
        part
        for part in get_args(union.model_fields[kind].annotation)
        if isinstance(part, type) and issubclass(part, PublisherKind)
    )
    return model

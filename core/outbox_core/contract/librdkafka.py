"""
Settings of librdkafka that `publisher.kafka.config` refuses, each with the reason.

Read by the relay's `publishers.kafka.config`, and by the operator's resource models: so a resource
with one of them is refused when it is applied. Otherwise a secret in it would be stored before a
relay could refuse it.
"""

from typing import Final

GUARANTEE = "the delivery guarantee rests on it"
IN_PLAIN_TEXT = "a secret does not belong in a config file: use the fields under tls and sasl"

REFUSED: Final = {
    "acks": GUARANTEE,
    "request.required.acks": GUARANTEE,
    "enable.idempotence": GUARANTEE,
    "enable.gapless.guarantee": "it follows from `ordering`",
    "max.in.flight": GUARANTEE,
    "max.in.flight.requests.per.connection": GUARANTEE,
    "retries": GUARANTEE,
    "message.send.max.retries": GUARANTEE,
    "delivery.report.only.error": "every event needs the broker's answer",
    "transactional.id": "the relay does not use transactions",
    "message.timeout.ms": "use deliveryTimeout, which is compared with the lease",
    "delivery.timeout.ms": "use deliveryTimeout, which is compared with the lease",
    "message.max.bytes": "use maxMessageBytes",
    "bootstrap.servers": "use bootstrapServers",
    "metadata.broker.list": "use bootstrapServers",
    "linger.ms": "use linger",
    "queue.buffering.max.ms": "use linger",
    "compression.type": "use compression",
    "compression.codec": "use compression",
    "security.protocol": "it follows from tls and sasl",
    "sasl.mechanism": "use sasl.mechanism under sasl",
    "sasl.mechanisms": "use sasl.mechanism under sasl",
    "sasl.username": IN_PLAIN_TEXT,
    "sasl.password": IN_PLAIN_TEXT,
    "sasl.oauthbearer.config": "use sasl.token",
    "sasl.oauthbearer.method": "use sasl.token",
    "sasl.oauthbearer.client.secret": IN_PLAIN_TEXT,
    "ssl.key.password": IN_PLAIN_TEXT,
    "ssl.key.pem": IN_PLAIN_TEXT,
    "ssl.keystore.password": IN_PLAIN_TEXT,
}

BY_KEY = ("murmur2_random", "murmur2", "consistent_random", "consistent", "fnv1a", "fnv1a_random")
"""Partitioners that always send a key to the same partition."""

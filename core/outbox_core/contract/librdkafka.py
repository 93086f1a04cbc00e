"""
Settings of librdkafka that `publisher.kafka.config` refuses, each with the reason.

Read by the relay's `publishers.kafka.config`, and by the operator's resources, so that a resource
with one of them is refused when it is applied: a secret in it would be stored before any relay
could complain.
"""

from typing import Final

RESTS_ON_IT = "the delivery guarantee rests on it"
IN_CLEAR = "a secret does not belong in a config file: use the fields under tls and sasl"

REFUSED: Final = {
    "acks": RESTS_ON_IT,
    "request.required.acks": RESTS_ON_IT,
    "enable.idempotence": RESTS_ON_IT,
    "enable.gapless.guarantee": "it follows from `ordering`",
    "max.in.flight": RESTS_ON_IT,
    "max.in.flight.requests.per.connection": RESTS_ON_IT,
    "retries": RESTS_ON_IT,
    "message.send.max.retries": RESTS_ON_IT,
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
    "sasl.username": IN_CLEAR,
    "sasl.password": IN_CLEAR,
    "sasl.oauthbearer.config": "use sasl.token",
    "sasl.oauthbearer.method": "use sasl.token",
    "sasl.oauthbearer.client.secret": IN_CLEAR,
    "ssl.key.password": IN_CLEAR,
    "ssl.key.pem": IN_CLEAR,
    "ssl.keystore.password": IN_CLEAR,
}

BY_KEY = ("murmur2_random", "murmur2", "consistent_random", "consistent", "fnv1a", "fnv1a_random")
"""Partitioners that send a key always to the same partition."""

"""Where events go: a kind of server in each module, and what a measurement needs of it."""

from bench.destinations.base import Destination
from bench.destinations.http import FiftyEndpoints, OneEndpoint, OneIsSilent, OneRefuses
from bench.destinations.kafka import KafkaTopics
from bench.destinations.nats import NatsStreams
from bench.destinations.rabbitmq import ClassicQueues, QuorumQueues
from bench.destinations.redis import RedisStreams
from bench.destinations.smtp import Mailboxes
from bench.destinations.sqs import SqsQueues

KINDS: dict[str, type[Destination]] = {
    "kafka": KafkaTopics,
    "http": OneEndpoint,
    "http-50": FiftyEndpoints,
    "http-50-refused": OneRefuses,
    "http-50-silent": OneIsSilent,
    "nats": NatsStreams,
    "rabbitmq-quorum": QuorumQueues,
    "rabbitmq-classic": ClassicQueues,
    "redis": RedisStreams,
    "sqs": SqsQueues,
    "smtp": Mailboxes,
}

__all__ = ["KINDS", "Destination"]

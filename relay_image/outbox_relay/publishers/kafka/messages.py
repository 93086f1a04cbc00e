"""From a claim to a Kafka record: its topic, its key and its headers. Pure; see `messages`."""

import re
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from outbox_core.contract.publishers.kafka import KafkaSettings
from outbox_core.model.attempt import Refused
from outbox_core.model.event import Claim
from outbox_relay.publishers.messages import HeadersOf, Template, headers_for

LEGAL_TOPIC: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")
TOPIC_NAMES: Final = "it may have 1 to 249 of a-z, A-Z, 0-9, '.', '_', '-'"


Route = tuple[str | Refused, str | None]
"""The topic, or why there is none, and the key."""


class Messages(NamedTuple):
    """How a claim becomes a record."""

    topic: Template
    key: Callable[[Claim], str | None]
    headers: HeadersOf

    def routes(self, claims: Sequence[Claim]) -> list[Route]:
        return list(zip(self.topic.all(claims), map(self.key, claims), strict=True))


def messages_for(settings: KafkaSettings) -> Messages:
    topic, headers = topic_template(settings), headers_for(settings, "ce_")
    return Messages(topic, aggregate_id if settings.format == "Debezium" else routing_key, headers)


def topic_template(settings: KafkaSettings) -> Template:
    return Template(settings.topic, "kafka.topic", "topic", illegal_topic)


def illegal_topic(name: str) -> str | None:
    if name in (".", "..") or not LEGAL_TOPIC.fullmatch(name):
        return TOPIC_NAMES
    return None


def routing_key(claim: Claim) -> str | None:
    """As `Claim.routing_key`: this is called for every event, and a property takes twice as
    long."""
    return claim.ordering_key if claim.partition_key is None else claim.partition_key


def aggregate_id(claim: Claim) -> str | None:
    """The key that Debezium's outbox event router uses; an event without an aggregate id has
    none."""
    return claim.aggregate_id

"""
From a claim to a Kafka record: its topic, and its headers in either format.

Pure, and hot: `kafka_sender` calls both for every event. Values stay strings, because the client
encodes them faster than Python does. Key and payload need nothing done to them.

The application's headers come first and exactly as they were stored. Ours follow, also where a
name is taken: a reader that keeps one value per name keeps the last, so `outbox-event-id` is
always the relay's word, and the application's is still there. Only `content-type` and
`traceparent` are not ours to repeat: where the application has set them, we add nothing.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from operator import attrgetter
from string import Formatter
from typing import Final

from outbox_core.contract.settings import KafkaSettings
from outbox_core.errors import SettingsError
from outbox_core.model.attempt import Error, ErrorClass, Refused
from outbox_core.model.event import Claim

KafkaHeader = tuple[str, str | bytes | None]
KafkaHeaders = list[KafkaHeader]

TEMPLATE_FIELDS: Final = ("event_type", "aggregate_type", "tenant_id")
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
LEGAL_TOPIC_CHARS: Final = re.compile(r"[a-zA-Z0-9._-]*")
LONGEST_TOPIC_CHARS: Final = 249
CACHED_TOPICS: Final = 10_000
"""A template over tenants may have more, and then starts over."""


class TopicTemplate:
    """Which topic an event belongs to, or why none."""

    def __init__(self, template: str) -> None:
        self._template = template
        self._fields = parse_template(template)
        # attrgetter needs a name; a template without fields may remember its topic by anything.
        self._value_of: Callable[[Claim], object] = attrgetter(
            *(self._fields or TEMPLATE_FIELDS[:1])
        )
        self._known: dict[object, str | Refused] = {}

    def __call__(self, claim: Claim) -> str | Refused:
        value = self._value_of(claim)
        topic = self._known.get(value)
        if topic is None:
            if len(self._known) >= CACHED_TOPICS:
                self._known.clear()
            topic = self._known[value] = self.fill({f: getattr(claim, f) for f in self._fields})
        return topic

    def fill(self, values: Mapping[str, str | None]) -> str | Refused:
        if missing := [field for field in self._fields if not values.get(field)]:
            return _refused(
                "NO_TOPIC", f"the topic is {self._template}, and it has no {', '.join(missing)}"
            )
        topic = self._template.format_map(values)
        if (
            topic in (".", "..")
            or len(topic) > LONGEST_TOPIC_CHARS
            or not LEGAL_TOPIC_CHARS.fullmatch(topic)
        ):
            return _refused(
                "INVALID_TOPIC",
                f"{topic!r} is no topic name: 1 to {LONGEST_TOPIC_CHARS} of a-z, A-Z, 0-9, "
                "'.', '_', '-'",
            )
        return topic


def parse_template(template: str) -> tuple[str, ...]:
    """The fields it uses, each once."""
    allowed = ", ".join(f"{{{field}}}" for field in TEMPLATE_FIELDS)
    try:
        parts = list(Formatter().parse(template))
    except ValueError as error:
        raise SettingsError(f"kafka.topic {template!r}: {error}; fields are {allowed}") from None
    fields: dict[str, None] = {}
    for literal, field, spec, conversion in parts:
        if not LEGAL_TOPIC_CHARS.fullmatch(literal):
            raise SettingsError(
                f"kafka.topic {template!r}: {literal!r} cannot be part of a topic name"
            )
        if field is None:
            continue
        if field not in TEMPLATE_FIELDS or spec or conversion:
            raise SettingsError(
                f"kafka.topic {template!r}: no field {{{field}}}; fields are {allowed}"
            )
        fields[field] = None
    return tuple(fields)


def topics_for(settings: KafkaSettings, samples: Iterable[Mapping[str, str | None]]) -> set[str]:
    """The topics that events with these fields go to; those without a legal one left out."""
    template = TopicTemplate(settings.topic)
    topics = (template.fill(sample) for sample in samples)
    return {topic for topic in topics if isinstance(topic, str)}


def raw_headers(claim: Claim) -> KafkaHeaders:
    """Format Raw: all that a consumer would otherwise have to ask the database for."""
    headers = _applications(claim)
    headers += (
        ("outbox-event-id", claim.event_id),
        ("outbox-event-type", claim.event_type),
        ("outbox-attempt", str(claim.attempts)),
        ("outbox-created-at", utc(claim.created_at)),
    )
    if claim.occurred_at is not None:
        headers.append(("outbox-occurred-at", utc(claim.occurred_at)))
    if claim.correlation_id is not None:
        headers.append(("outbox-correlation-id", claim.correlation_id))
    if claim.causation_id is not None:
        headers.append(("outbox-causation-id", claim.causation_id))
    if claim.idempotency_key is not None:
        headers.append(("outbox-idempotency-key", claim.idempotency_key))
    if claim.tenant_id is not None:
        headers.append(("outbox-tenant-id", claim.tenant_id))
    if claim.aggregate_type is not None:
        headers.append(("outbox-aggregate-type", claim.aggregate_type))
    if claim.aggregate_id is not None:
        headers.append(("outbox-aggregate-id", claim.aggregate_id))
    if claim.partition_key is not None and claim.ordering_key is not None:
        # Otherwise it is the record's key, or there is none.
        headers.append(("outbox-ordering-key", claim.ordering_key))
    return headers


class CloudEventHeaders:
    """Format CloudEvents 1.0, Kafka binding, binary mode: the payload stays as it is."""

    def __init__(self, source: str) -> None:
        self._always: tuple[KafkaHeader, ...] = (("ce_specversion", "1.0"), ("ce_source", source))

    def __call__(self, claim: Claim) -> KafkaHeaders:
        headers = _applications(claim)
        headers += self._always
        headers += (
            ("ce_id", claim.event_id),
            ("ce_type", claim.event_type),
            # Of a fixed width, because the extension orders its values as strings.
            ("ce_sequence", f"{claim.seq:020d}"),
            ("outbox-attempt", str(claim.attempts)),
        )
        if claim.occurred_at is None:
            headers.append(("ce_time", utc(claim.created_at)))
        else:
            headers.append(("ce_time", utc(claim.occurred_at)))
            headers.append(("ce_recordedtime", utc(claim.created_at)))
        optional = (
            ("ce_subject", claim.aggregate_id),
            ("ce_partitionkey", claim.routing_key),
            ("ce_correlationid", claim.correlation_id),
            ("ce_causationid", claim.causation_id),
            ("ce_idempotencykey", claim.idempotency_key),
            ("ce_tenantid", claim.tenant_id),
            ("ce_aggregatetype", claim.aggregate_type),
        )
        # An attribute of CloudEvents is absent or has at least one character.
        headers += [header for header in optional if header[1]]
        return headers


def headers_for(settings: KafkaSettings) -> Callable[[Claim], KafkaHeaders]:
    if settings.format == "CloudEvents":
        return CloudEventHeaders(settings.source)
    return raw_headers


def utc(moment: datetime) -> str:
    """ISO 8601, to the microsecond, whatever the session's time zone was."""
    since = moment - EPOCH
    return f"{_second(since.days * 86400 + since.seconds)}.{since.microseconds:06}Z"


@lru_cache(1024)  # formatting a whole date for every event would cost a third of all our work
def _second(since_epoch: int) -> str:
    return (EPOCH + timedelta(seconds=since_epoch)).isoformat()[:-6]


def _applications(claim: Claim) -> KafkaHeaders:
    headers: KafkaHeaders = [] if claim.headers_json is None else [*claim.headers]
    if claim.content_type is not None and not _has(headers, "content-type"):
        headers.append(("content-type", claim.content_type))
    if claim.traceparent_in_metadata is not None and not _has(headers, "traceparent"):
        headers.append(("traceparent", claim.traceparent_in_metadata))
    return headers


def _has(headers: KafkaHeaders, name: str) -> bool:
    return any(header[0].lower() == name for header in headers)


def _refused(code: str, text: str) -> Refused:
    return Refused(Error.of(ErrorClass.EVENT, code, text))

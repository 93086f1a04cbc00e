"""
From a claim to a message, as far as brokers agree: where it goes by a template, and its headers.

Pure, and hot: publishers call both for every event. Values stay strings, because clients encode
them faster than Python does. The payload is sent as it is.

The application's headers come first and exactly as they were stored. Ours follow, even where a name
is taken: a reader that keeps one value per name keeps the last, so `outbox-event-id` is always the
relay's, and the application's is still there. Only `content-type` and `traceparent` are never
repeated: where the application has set them, we add nothing.
"""

from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from functools import lru_cache
from operator import attrgetter
from string import Formatter
from typing import Final

from outbox_core.contract.publishers.common import FormattedKind
from outbox_core.errors import SettingsError
from outbox_core.model.attempt import Error, ErrorClass, Refused
from outbox_core.model.event import EPOCH, Claim, Moment, message_fields
from outbox_relay.publishers.protocol import Sample

Header = tuple[str, str | bytes | None]
Headers = list[Header]
HeadersOf = Callable[[Claim], Headers]

TEMPLATE_FIELDS: Final = ("event_type", "aggregate_type", "tenant_id")
"""These have few values, and `check` knows them. A publisher that addresses single things, as by a
URL, may allow other fields of `Claim` too."""
FIRST_ATTEMPT: Final = ("outbox-attempt", "1")
THREE_DIGITS: Final = tuple(f"{n:03}" for n in range(1000))
CACHED_NAMES: Final = 10_000
"""A template over tenants may make more names; then the cache is emptied."""


class Template:
    """Which topic, subject, stream or URL an event belongs to, or why it has none."""

    def __init__(
        self,
        template: str,
        setting: str,
        noun: str,
        illegal: Callable[[str], str | None],
        *,
        fields: Sequence[str] = TEMPLATE_FIELDS,
        escape: Callable[[str], str] | None = None,
    ) -> None:
        """
        `setting` is where it was written (`kafka.topic`), and `noun` what it makes (topic): both
        are for error texts. `illegal` returns what is wrong with a name, or None. `escape` encodes
        a value that would otherwise have a meaning of its own in a name (a slash in a URL).
        """
        self._template = template
        self._noun = noun
        self._illegal = illegal
        self._escape = escape
        self._fields = _fields_of(template, setting, fields)
        # Whatever the values are, the text between them stays: plain values show whether it is
        # legal.
        if why := illegal(template.format_map(dict.fromkeys(self._fields, "x"))):
            raise SettingsError(f"{setting} {template!r} does not make a legal {noun}: {why}")
        # attrgetter needs a field; a template without fields can cache its only name under any.
        self._value_of: Callable[[Claim], object] = attrgetter(*(self._fields or ("event_type",)))
        self._known: dict[object, str | Refused] = {}

    def __call__(self, claim: Claim) -> str | Refused:
        value = self._value_of(claim)
        name = self._known.get(value)
        if name is None:
            if len(self._known) >= CACHED_NAMES:
                self._known.clear()
            name = self._known[value] = self.fill({f: getattr(claim, f) for f in self._fields})
        return name

    def all(self, claims: Sequence[Claim]) -> list[str | Refused]:
        """The same for each claim, in a third of the time that as many calls would take."""
        names = list(map(self._known.get, map(self._value_of, claims)))
        if None in names:
            return [self(claim) for claim in claims]
        return names  # type: ignore[return-value]

    def fill(self, values: Sample) -> str | Refused:
        given = {field: value for field in self._fields if (value := values.get(field))}
        if missing := [field for field in self._fields if field not in given]:
            text = (
                f"the {self._noun} is {self._template}, and the event has no {', '.join(missing)}"
            )
            return refused(f"NO_{self._code}", text)
        if self._escape is not None:
            given = {field: self._escape(value) for field, value in given.items()}
        name = self._template.format_map(given)
        if why := self._illegal(name):
            return refused(
                f"INVALID_{self._code}", f"{name[:200]!r} is not a legal {self._noun}: {why}"
            )
        return name

    def names(self, samples: Iterable[Sample]) -> list[str]:
        """Where events such as these go, each name once; without the events that have no legal
        name."""
        names = (self.fill(sample) for sample in samples)
        return sorted({name for name in names if isinstance(name, str)})

    @property
    def _code(self) -> str:
        return self._noun.upper().replace(" ", "_")


def _fields_of(template: str, setting: str, allowed: Sequence[str]) -> tuple[str, ...]:
    """The fields it uses, each once."""
    listed = ", ".join(f"{{{field}}}" for field in allowed)
    try:
        parts = list(Formatter().parse(template))
    except ValueError as error:
        raise SettingsError(f"{setting} {template!r}: {error}; fields are {listed}") from None
    fields: dict[str, None] = {}
    for _, field, spec, conversion in parts:
        if field is None:
            continue
        if field not in allowed or spec or conversion:
            raise SettingsError(
                f"{setting} {template!r}: no field {{{field}}}; fields are {listed}"
            )
        fields[field] = None
    return tuple(fields)


def headers_for(settings: FormattedKind, prefix: str) -> HeadersOf:
    """`prefix` is that of CloudEvents in the binding for this transport."""
    match settings.format:
        case "Raw":
            return raw_headers
        case "CloudEvents":
            return CloudEventHeaders(settings.source, prefix)
        case "Debezium":
            return debezium_headers


def raw_headers(claim: Claim) -> Headers:
    """Format Raw: all that a consumer would otherwise have to ask the database for."""
    # fmt: off
    (event_id, event_type, _, content_type, headers_json, traceparent, partition_key, ordering_key,
     tenant_id, correlation_id, causation_id, idempotency_key, aggregate_type, aggregate_id,
     occurred_at, created_at) = message_fields(claim)
    # fmt: on
    attempts = claim.attempts
    headers: Headers = [
        ("outbox-event-id", event_id),
        ("outbox-event-type", event_type),
        FIRST_ATTEMPT if attempts == 1 else ("outbox-attempt", str(attempts)),
        ("outbox-created-at", utc(created_at)),
    ]
    if headers_json is not None or content_type is not None or traceparent is not None:
        headers[:0] = _applications(claim)
    if occurred_at is not None:
        headers.append(("outbox-occurred-at", utc(occurred_at)))
    if correlation_id is not None:
        headers.append(("outbox-correlation-id", correlation_id))
    if causation_id is not None:
        headers.append(("outbox-causation-id", causation_id))
    if idempotency_key is not None:
        headers.append(("outbox-idempotency-key", idempotency_key))
    if tenant_id is not None:
        headers.append(("outbox-tenant-id", tenant_id))
    if aggregate_type is not None:
        headers.append(("outbox-aggregate-type", aggregate_type))
    if aggregate_id is not None:
        headers.append(("outbox-aggregate-id", aggregate_id))
    if partition_key is not None and ordering_key is not None:
        # Otherwise it is the message's key, or there is none.
        headers.append(("outbox-ordering-key", ordering_key))
    return headers


class CloudEventHeaders:
    """Format CloudEvents 1.0, binary mode: the payload stays as it is."""

    def __init__(self, source: str, prefix: str) -> None:
        self._version, self._source = (f"{prefix}specversion", "1.0"), (f"{prefix}source", source)
        self._id, self._type, self._sequence = (f"{prefix}{n}" for n in ("id", "type", "sequence"))
        self._time, self._recorded = f"{prefix}time", f"{prefix}recordedtime"
        self._subject, self._key = f"{prefix}subject", f"{prefix}partitionkey"
        self._correlation, self._causation = f"{prefix}correlationid", f"{prefix}causationid"
        self._idempotency, self._tenant = f"{prefix}idempotencykey", f"{prefix}tenantid"
        self._aggregate = f"{prefix}aggregatetype"

    def __call__(self, claim: Claim) -> Headers:
        # fmt: off
        (event_id, event_type, _, content_type, headers_json, traceparent, partition_key,
         ordering_key, tenant_id, correlation_id, causation_id, idempotency_key, aggregate_type,
         aggregate_id, occurred_at, created_at) = message_fields(claim)
        # fmt: on
        attempts = claim.attempts
        headers: Headers = [
            self._version,
            self._source,
            (self._id, event_id),
            (self._type, event_type),
            # Of a fixed width, because the extension orders its values as strings.
            (self._sequence, str(claim.seq).zfill(20)),
            FIRST_ATTEMPT if attempts == 1 else ("outbox-attempt", str(attempts)),
        ]
        if headers_json is not None or content_type is not None or traceparent is not None:
            headers[:0] = _applications(claim)
        if occurred_at is None:
            headers.append((self._time, utc(created_at)))
        else:
            headers.append((self._time, utc(occurred_at)))
            headers.append((self._recorded, utc(created_at)))
        # An attribute of CloudEvents is absent or has at least one character.
        if aggregate_id:
            headers.append((self._subject, aggregate_id))
        if key := ordering_key if partition_key is None else partition_key:
            headers.append((self._key, key))
        if correlation_id:
            headers.append((self._correlation, correlation_id))
        if causation_id:
            headers.append((self._causation, causation_id))
        if idempotency_key:
            headers.append((self._idempotency, idempotency_key))
        if tenant_id:
            headers.append((self._tenant, tenant_id))
        if aggregate_type:
            headers.append((self._aggregate, aggregate_type))
        return headers


def debezium_headers(claim: Claim) -> Headers:
    """Format Debezium: what Debezium's outbox event router adds by default, and no more. It does
    not add the application's headers: for it they are a column that its configuration would have to
    place."""
    return [("id", claim.event_id)]


def utc(moment: Moment) -> str:
    """ISO 8601, to the microsecond."""
    second, fraction = divmod(moment, 1_000_000)
    return f"{_second(second)}{THREE_DIGITS[fraction // 1000]}{THREE_DIGITS[fraction % 1000]}Z"


@lru_cache(1024)  # formatting a whole date for every event would cost a third of all our work
def _second(since_epoch: int) -> str:
    return (EPOCH + timedelta(seconds=since_epoch)).isoformat()[:-6] + "."


def _applications(claim: Claim) -> Headers:
    if claim.headers_json is None:  # as a rule, and then nothing can be there twice
        headers: Headers = []
        if claim.content_type is not None:
            headers.append(("content-type", claim.content_type))
        if claim.traceparent_in_metadata is not None:
            headers.append(("traceparent", claim.traceparent_in_metadata))
        return headers
    headers = [*claim.headers]
    if claim.content_type is not None and not _has(headers, "content-type"):
        headers.append(("content-type", claim.content_type))
    if claim.traceparent_in_metadata is not None and not _has(headers, "traceparent"):
        headers.append(("traceparent", claim.traceparent_in_metadata))
    return headers


def _has(headers: Headers, name: str) -> bool:
    return any(header[0].lower() == name for header in headers)


def refused(code: str, text: str) -> Refused:
    """For a reason that is the event's own."""
    return Refused(Error.of(ErrorClass.EVENT, code, text))

"""
From a claim to a stream entry: the whole XADD command, as bytes. Pure; see `messages`.

An entry has the fields `payload`, `key` where the event has one, and `headers`: a JSON array of
[name, value] pairs, because a name may occur twice and the order counts. With format Debezium it
has what Debezium Server writes: `key`, `value`, and the header `id` as a field `ID`.
"""

import json
import unicodedata
from collections.abc import Callable
from typing import Final, NamedTuple

from outbox_core.contract.publishers.redis import RedisSettings
from outbox_core.model.attempt import Refused
from outbox_core.model.event import Claim
from outbox_relay.publishers.messages import Template, headers_for, refused
from outbox_relay.publishers.redis.wire import pack

LONGEST_NAME_BYTES: Final = 512
STREAM_NAMES: Final = (
    f"it may have 1 to {LONGEST_NAME_BYTES} bytes, none of them a control character"
)

NO_AGGREGATE: Final = refused(
    "NO_AGGREGATE_ID",
    "the format is Debezium, whose key is the aggregate's id, and it has no aggregate_id",
)


class Entries(NamedTuple):
    """How a claim becomes an entry."""

    stream: Callable[[Claim], str | Refused]
    command: Callable[[str, Claim], bytes]


def entries_for(settings: RedisSettings) -> Entries:
    stream, headers_of = stream_template(settings), headers_for(settings, "ce_")
    trim = () if settings.max_length is None else ("MAXLEN", "~", str(settings.max_length))
    # The default would escape what is not ASCII: longer, and of no use.
    to_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode

    def command(stream: str, claim: Claim) -> bytes:
        headers = to_json(headers_of(claim))
        key = claim.ordering_key if claim.partition_key is None else claim.partition_key
        head = ("XADD", stream, *trim, "*", "payload", claim.payload)
        if key is None:
            return pack(*head, "headers", headers)
        return pack(*head, "key", key, "headers", headers)

    def command_of_debezium(stream: str, claim: Claim) -> bytes:
        assert claim.aggregate_id is not None  # or it has no stream
        fields = ("key", claim.aggregate_id, "value", claim.payload, "ID", claim.event_id)
        return pack("XADD", stream, *trim, "*", *fields)

    def stream_of_aggregate(claim: Claim) -> str | Refused:
        return NO_AGGREGATE if claim.aggregate_id is None else stream(claim)

    if settings.format == "Debezium":
        return Entries(stream_of_aggregate, command_of_debezium)
    return Entries(stream, command)


def stream_template(settings: RedisSettings) -> Template:
    return Template(settings.stream, "redis.stream", "stream", illegal_stream)


def illegal_stream(name: str) -> str | None:
    """Redis takes any bytes; these are for people, who must be able to type them."""
    if not name or len(name.encode()) > LONGEST_NAME_BYTES:
        return STREAM_NAMES
    if any(unicodedata.category(character) == "Cc" for character in name):
        return STREAM_NAMES
    return None

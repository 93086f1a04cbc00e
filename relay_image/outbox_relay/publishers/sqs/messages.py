"""
From a claim to an entry of SendMessageBatch: its queue, its body and its attributes. Pure, and hot;
see `messages` beside this package.

SQS takes less than other transports, so there are rules of our own, which docs/publishers/sqs.md
explains to consumers:

- A body is text of certain characters, and not empty. Any other payload is in the Binary attribute
  `outbox-payload`, which for an empty payload is a String.
- A message has 10 attributes. First come those that every consumer needs (`FIRST`), then the
  application's headers, then the rest of ours. Headers for which there is no room, or which cannot
  be an attribute, are in the attribute `outbox-headers`: JSON, a list of names and values.
"""

import json
import re
from base64 import b64encode
from collections import Counter
from functools import lru_cache
from hashlib import sha256
from typing import Any, Final, NamedTuple

from outbox_core.contract.publishers.sqs import SqsSettings
from outbox_core.errors import SettingsError
from outbox_core.model.attempt import Refused
from outbox_core.model.event import Claim
from outbox_relay.publishers.messages import (
    CACHED_NAMES,
    Header,
    Headers,
    Template,
    headers_for,
    refused,
)

LEGAL_URL: Final = re.compile(r"https?://[^/?#@\s{}]+(/[a-zA-Z0-9_.-]+)*/([a-zA-Z0-9_.-]+)")
LEGAL_NAME: Final = re.compile(r"(?=.{1,80}$)[a-zA-Z0-9_-]+(\.fifo)?")
URLS: Final = "it must be like https://sqs.eu-west-1.amazonaws.com/123456789012/orders"
NAMES: Final = (
    "a queue's name has 1 to 80 of a-z, A-Z, 0-9, '_', '-', perhaps with .fifo at the end"
)

NOT_TEXT: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
LEGAL_ATTRIBUTE: Final = re.compile(
    r"(?i)(?!aws\.|amazon\.)(?=.{1,256}$)[a-z0-9_-]+(\.[a-z0-9_-]+)*"
)
LEGAL_GROUP: Final = re.compile(r"[!-~]{1,128}")
MOST_ATTRIBUTES: Final = 10

PAYLOAD: Final = "outbox-payload"
HEADERS: Final = "outbox-headers"
STRING: Final = "String"
EMPTY: Final = "empty"
ELSEWHERE: Final = "-"
"""The body, if the payload is in the attribute."""
CE: Final = "ce-"
FIRST: Final = {
    "Raw": frozenset(("outbox-event-id", "outbox-event-type")),
    "CloudEvents": frozenset(f"{CE}{name}" for name in ("specversion", "id", "source", "type")),
    "Debezium": frozenset(("id",)),
}
"""By format. Where the application has a header of such a name, ours is the attribute."""

Attribute = dict[str, Any]
Attributes = dict[str, Attribute]


class Entry(NamedTuple):
    queue: str
    fields: dict[str, Any]
    """Of the request, except for the Id."""
    size: int
    """As SQS counts it."""


class Messages:
    """How a claim becomes an entry, or why it cannot."""

    def __init__(self, settings: SqsSettings) -> None:
        self.queue_of = queue_template(settings)
        self._headers_of = headers_for(settings, CE)
        self._first = FIRST[settings.format]
        self._largest = settings.max_message_bytes
        self._fifo = settings.holds_order

    def queue(self, claim: Claim) -> str | None:
        queue = self.queue_of(claim)
        return queue if isinstance(queue, str) else None

    def make(self, claim: Claim) -> Entry | Refused:
        queue = self.queue_of(claim)
        if not isinstance(queue, str):
            return queue
        body = text_of(claim.payload)
        room = MOST_ATTRIBUTES if body else MOST_ATTRIBUTES - 1
        attributes, size = attributes_of(self._headers_of(claim), self._first, room)
        if body:
            size += len(claim.payload)
        else:
            body = ELSEWHERE
            held = attributes[PAYLOAD] = _payload_attribute(claim.payload)
            size += len(ELSEWHERE) + len(PAYLOAD) + len(held["DataType"])
            size += len(claim.payload) or len(EMPTY)
        if size > self._largest:
            text = f"it has {size} bytes with its attributes; maxMessageBytes is {self._largest}"
            return refused("MESSAGE_TOO_LARGE", text)
        fields: dict[str, Any] = {"MessageBody": body, "MessageAttributes": attributes}
        if self._fifo:
            fields["MessageGroupId"] = group_of(claim)
            fields["MessageDeduplicationId"] = claim.event_id
        return Entry(queue, fields, size)


def queue_template(settings: SqsSettings) -> Template:
    host = settings.queue_url.partition("://")[2].partition("/")[0]
    if "{" in host:
        # An event must not choose the server that it is sent to.
        raise SettingsError(f"sqs.queueUrl {settings.queue_url!r}: the host must have no field")
    return Template(settings.queue_url, "sqs.queueUrl", "queue URL", illegal_url, escape=_dashed)


def illegal_url(url: str) -> str | None:
    found = LEGAL_URL.fullmatch(url)
    if not found:
        return URLS
    return None if LEGAL_NAME.fullmatch(found[2]) else NAMES


def _dashed(value: str) -> str:
    """Without dots, which no name may have, and without slashes, which would lead elsewhere: a
    value with a slash then makes no legal name."""
    return value.replace(".", "-").replace("/", "%2F")


def group_of(claim: Claim) -> str:
    key = claim.ordering_key
    if key is None:
        return claim.event_id
    return key if LEGAL_GROUP.fullmatch(key) else f"sha256-{sha256(key.encode()).hexdigest()}"


def text_of(payload: bytes) -> str:
    """As a body, or "" if it cannot be one."""
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        return ""
    return "" if NOT_TEXT.search(text) else text


def attributes_of(headers: Headers, first: frozenset[str], room: int) -> tuple[Attributes, int]:
    """At most `room` attributes, and the size of them all."""
    attributes: Attributes = {}
    rest: Headers = []
    for header in reversed(headers):  # ours stand behind the application's
        name = header[0]
        if name in first and name not in attributes and _can_be_attribute(header):
            attributes[name] = {"DataType": STRING, "StringValue": header[1]}
        else:
            rest.append(header)
    rest.reverse()
    times = Counter([*attributes, *(name for name, _ in rest)])
    able = [_can_be_attribute(header) and times[header[0]] == 1 for header in rest]
    room -= len(attributes)
    if len(rest) > room or not all(able):
        room -= 1  # for what is packed
    packed: Headers = []
    for header, alone in zip(rest, able, strict=True):
        if alone and room > 0:
            attributes[header[0]] = {"DataType": STRING, "StringValue": header[1]}
            room -= 1
        else:
            packed.append(header)
    if packed:
        # ASCII, and what XML forbids is escaped: any header can be in it.
        text = json.dumps(packed, separators=(",", ":"))
        attributes[HEADERS] = {"DataType": STRING, "StringValue": text}
    size = 0
    for name, attribute in attributes.items():
        value = attribute["StringValue"]
        size += len(name) + len(STRING) + (len(value) if value.isascii() else len(value.encode()))
    return attributes, size


def _can_be_attribute(header: Header) -> bool:
    name, value = header
    return bool(value) and not NOT_TEXT.search(value) and _is_legal(name)  # type: ignore[arg-type]


@lru_cache(CACHED_NAMES)
def _is_legal(name: str) -> bool:
    return name not in (PAYLOAD, HEADERS) and LEGAL_ATTRIBUTE.fullmatch(name) is not None


def _payload_attribute(payload: bytes) -> Attribute:
    if not payload:
        return {"DataType": STRING, "StringValue": EMPTY}  # a Binary cannot be empty either
    return {"DataType": "Binary", "BinaryValue": b64encode(payload).decode()}

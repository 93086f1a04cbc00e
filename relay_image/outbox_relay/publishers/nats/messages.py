"""
From a claim to a NATS message: its subject, its headers as bytes. Pure, and hot; see `messages`.

Whatever would make the server drop the connection, and with it the event's neighbours, is refused
here: an illegal subject, a line break in a header. So is what would be an instruction to the
server.
"""

import re
from typing import Final, NamedTuple

from outbox_core.contract.publishers.nats import NatsSettings
from outbox_core.model.attempt import Refused
from outbox_core.model.event import Claim
from outbox_relay.publishers.messages import (
    CACHED_NAMES,
    Headers,
    HeadersOf,
    Template,
    headers_for,
    refused,
)

LONGEST_SUBJECT_BYTES: Final = 1000
"""The server's line may have 4096 bytes, and there is more in it than the subject."""
HEADER_NAME: Final = re.compile(r"[!-9;-~]+")
TO_ENCODE: Final = re.compile(r'[^!-~]|["%]')
"""In a CloudEvents attribute, by the rule of the HTTP binding, which NATS shares."""


class Message(NamedTuple):
    subject: str
    headers: bytes
    """Lines, without the first and the last, which are the same for every message."""
    payload: bytes

    @property
    def size(self) -> int:
        return len(self.headers) + len(self.payload)


class Messages:
    """How a claim becomes a message, or why it cannot."""

    def __init__(self, settings: NatsSettings) -> None:
        self._subject_of = subject_template(settings)
        self._headers_of: HeadersOf = headers_for(settings, "ce-")
        if settings.format == "CloudEvents":
            self._headers_of = CloudEvents(self._headers_of)
        self._legal_names: set[str] = set()
        self._largest = settings.max_message_bytes
        self._deduplicate = settings.deduplicate
        self._expected = (
            "" if settings.stream is None else f"Nats-Expected-Stream: {settings.stream}\r\n"
        )

    def subject(self, claim: Claim) -> str | None:
        subject = self._subject_of(claim)
        return subject if isinstance(subject, str) else None

    def make(self, claim: Claim) -> Message | Refused:
        subject = self._subject_of(claim)
        if not isinstance(subject, str):
            return subject
        headers = self._headers_of(claim)
        legal = self._legal_names
        for name, _ in headers:
            if name not in legal:
                if why := illegal_name(name):
                    return why
                if len(legal) >= CACHED_NAMES:
                    legal.clear()
                legal.add(name)
        lines = [
            f"{name}: {value}" if isinstance(value, str) else f"{name}: {(value or b'').decode()}"
            for name, value in headers
        ]
        text = "\r\n".join(lines)
        if not text.count("\n") == text.count("\r") == len(lines) - 1:
            return refused("INVALID_HEADER", "a header must not contain a line break")
        if self._deduplicate:
            text = f"Nats-Msg-Id: {claim.event_id}\r\n{self._expected}{text}\r\n"
        else:
            text = f"{self._expected}{text}\r\n"
        message = Message(subject, text.encode(), claim.payload)
        if message.size > self._largest:
            return too_large(message.size, f"maxMessageBytes is {self._largest}")
        return message


class CloudEvents:
    """What the binding for NATS demands beyond the names."""

    def __init__(self, headers_of: HeadersOf) -> None:
        self._headers_of = headers_of

    def __call__(self, claim: Claim) -> Headers:
        headers = [
            (name, TO_ENCODE.sub(percent, value))
            if name.startswith("ce-") and isinstance(value, str) and TO_ENCODE.search(value)
            else (name, value)
            for name, value in self._headers_of(claim)
        ]
        if claim.content_type is not None:
            headers.append(("ce-datacontenttype", TO_ENCODE.sub(percent, claim.content_type)))
        return headers


def percent(found: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in found[0].encode())


def subject_template(settings: NatsSettings) -> Template:
    return Template(settings.subject, "nats.subject", "subject", illegal_subject)


def illegal_subject(name: str) -> str | None:
    if any(not c.isprintable() or c.isspace() for c in name):
        return "it must not contain white space or control characters"
    tokens = name.split(".")
    if "" in tokens:
        return "it must not begin or end with a dot, or contain two in a row"
    if "*" in tokens or ">" in tokens:
        return "it must not contain wildcards"
    if name.startswith("$") or tokens[0] == "_INBOX":
        return "names that begin with $ or _INBOX are the server's own"
    if len(name.encode()) > LONGEST_SUBJECT_BYTES:
        return f"it must not be longer than {LONGEST_SUBJECT_BYTES} bytes"
    return None


def illegal_name(name: str) -> Refused | None:
    if not HEADER_NAME.fullmatch(name):
        return refused("INVALID_HEADER", f"{name!r} is not a header name of NATS")
    if name.lower().startswith("nats-"):
        text = f"{name}: headers that begin with Nats- are instructions to the server"
        return refused("RESERVED_HEADER", text)
    return None


def too_large(size: int, limit: str) -> Refused:
    return refused("MESSAGE_TOO_LARGE", f"it has {size} bytes with its headers, and {limit}")

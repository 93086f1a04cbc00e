"""
What an e-mail event asks for: the fields of its payload, each checked, or why it is refused.

Pure. Everything that ends up in a header or a command is judged here: a line break there would
begin a header or a command of the event's own (injection).
"""

import binascii
import json
import re
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from outbox_core.contract.publishers.smtp import ADDRESS

FIELDS: Final = frozenset(
    [
        "to",
        "cc",
        "bcc",
        "subject",
        "body",
        "body_text",
        "body_html",
        "from",
        "reply_to",
        "headers",
        "attachments",
        "idempotency_key",
    ]
)
ATTACHMENT_FIELDS: Final = frozenset(("filename", "content_type", "content_base64"))
MOST_HEADERS: Final = 50
LONGEST_VALUE_CHARS: Final = 2000
"""Of a header's value: nothing longer belongs in a header, and some servers refuse long lines."""

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f\x85\u2028\u2029\ud800-\udfff]")
_SURROGATE: Final = re.compile(r"[\ud800-\udfff]")
_PLAIN: Final = re.compile(ADDRESS)
_NAMED: Final = re.compile(
    rf'(?:"(?P<quoted>[^"\\]*)"|(?P<bare>[^"<>@]*?))\s*<(?P<address>{ADDRESS})>'
)
_HEADER_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,70}")
_CONTENT_TYPE: Final = re.compile(r"(?!multipart/|message/)[a-z0-9.+-]{1,60}/[a-z0-9.+-]{1,100}")
_OURS: Final = re.compile(
    r"(?i)(from|to|cc|bcc|subject|date|message-id|sender|reply-to|return-path|received"
    r"|delivered-to|mime-version|content-.*|resent-.*|dkim-.*|arc-.*|authentication-results"
    r"|x-outbox-.*|x-idempotency-key)"
)


class Unfit(Exception):
    """The payload does not describe a message: a code and a text."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


class Mailbox(NamedTuple):
    name: str
    address: str

    @property
    def domain(self) -> str:
        return self.address.rpartition("@")[2]


@dataclass(frozen=True)
class Attachment:
    filename: str
    content_type: str
    content: bytes


@dataclass(frozen=True)
class Email:
    to: tuple[Mailbox, ...]
    cc: tuple[Mailbox, ...]
    bcc: tuple[Mailbox, ...]
    subject: str
    text: str | None
    html: str | None
    sender: Mailbox | None
    reply_to: tuple[Mailbox, ...]
    headers: tuple[tuple[str, str], ...]
    attachments: tuple[Attachment, ...]
    idempotency_key: str | None

    @property
    def recipients(self) -> list[str]:
        """Each once."""
        return list(dict.fromkeys(m.address for m in (*self.to, *self.cc, *self.bcc)))


def parse(payload: bytes) -> Email:
    try:
        given = json.loads(payload)
    except ValueError as error:  # also of bytes that are not UTF-8
        raise Unfit("INVALID_PAYLOAD", f"the payload is not JSON: {error}") from None
    except RecursionError:
        raise Unfit("INVALID_PAYLOAD", "the payload is nested too deeply") from None
    if not isinstance(given, dict):
        raise Unfit("INVALID_PAYLOAD", "the payload must be a JSON object")
    _only(given, FIELDS, "the payload")
    if "body" in given and "body_text" in given:
        raise Unfit("INVALID_PAYLOAD", "body and body_text mean the same: keep one")
    text = _body(given, "body_text" if "body_text" in given else "body")
    html = _body(given, "body_html")
    if text is None and html is None:
        raise Unfit("INVALID_PAYLOAD", "body_text and body_html are both missing")
    senders = _addresses(given, "from")
    if len(senders) > 1:
        raise Unfit("INVALID_PAYLOAD", "from has more than one address")
    email = Email(
        to=_addresses(given, "to"),
        cc=_addresses(given, "cc"),
        bcc=_addresses(given, "bcc"),
        subject=_line(given.get("subject", ""), "subject"),
        text=text,
        html=html,
        sender=senders[0] if senders else None,
        reply_to=_addresses(given, "reply_to"),
        headers=_headers(given.get("headers")),
        attachments=_attachments(given.get("attachments")),
        idempotency_key=_key(given.get("idempotency_key")),
    )
    if not email.recipients:
        raise Unfit("NO_RECIPIENT", "to, cc and bcc are all empty")
    return email


def _only(given: Mapping[str, Any], known: frozenset[str], what: str) -> None:
    """A misspelled field is refused: better than a message without it."""
    if unknown := sorted(given.keys() - known):
        names = ", ".join(ascii(name)[:50] for name in unknown[:5])
        raise Unfit("UNKNOWN_FIELD", f"{what} has unknown fields: {names}")


def _line(value: object, what: str) -> str:
    if not isinstance(value, str):
        raise Unfit("INVALID_PAYLOAD", f"{what} must be text")
    if _CONTROL.search(value):
        raise Unfit("HEADER_INJECTION", f"{what} has a line break or a control character")
    if len(value) > LONGEST_VALUE_CHARS:
        raise Unfit("INVALID_PAYLOAD", f"{what} is longer than {LONGEST_VALUE_CHARS} characters")
    return value


def _body(given: Mapping[str, Any], name: str) -> str | None:
    value = given.get(name)
    if value is None:
        return None
    if not isinstance(value, str):
        raise Unfit("INVALID_PAYLOAD", f"{name} must be text")
    if _SURROGATE.search(value):
        raise Unfit("INVALID_PAYLOAD", f"{name} has a lone surrogate (half a character)")
    return value


def _key(value: object) -> str | None:
    return None if value is None else _line(value, "idempotency_key")


def _addresses(given: Mapping[str, Any], name: str) -> tuple[Mailbox, ...]:
    value = given.get(name)
    if value is None:
        return ()
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list):
        raise Unfit("INVALID_PAYLOAD", f"{name} must be an address or a list of them")
    return tuple(_mailbox(item, name) for item in value)


def _mailbox(value: object, what: str) -> Mailbox:
    text = _line(value, what)
    if _PLAIN.fullmatch(text):
        name, address = "", text
    elif match := _NAMED.fullmatch(text):
        name, address = (match["quoted"] or match["bare"] or "").strip(), match["address"]
    else:
        raise Unfit(
            "INVALID_ADDRESS",
            f"{what}: {ascii(text)[:100]} is not an address; write name@domain or Name "
            "<name@domain>, the address in ASCII",
        )
    if len(address) > 254 or _is_dotted_wrongly(address.partition("@")[0]):
        raise Unfit("INVALID_ADDRESS", f"{what}: {address[:100]} is not an address")
    if "=?" in address:  # an address cannot be encoded, and readers would decode it
        raise Unfit("HEADER_INJECTION", f"{what}: {address[:100]} has an encoded word")
    return Mailbox(name, address)


def _is_dotted_wrongly(local: str) -> bool:
    return local.startswith(".") or local.endswith(".") or ".." in local


def _headers(value: object) -> tuple[tuple[str, str], ...]:
    if value is None:
        return ()
    if not isinstance(value, dict) or len(value) > MOST_HEADERS:
        raise Unfit(
            "INVALID_PAYLOAD", f"headers must be an object of at most {MOST_HEADERS} fields"
        )
    for name in value:
        if _CONTROL.search(name):
            raise Unfit("HEADER_INJECTION", "a header's name has a line break")
        if not _HEADER_NAME.fullmatch(name):
            raise Unfit("INVALID_HEADER", f"{ascii(name)[:100]} is not a header name")
        if _OURS.fullmatch(name):
            raise Unfit(
                "INVALID_HEADER", f"headers must not contain {name}: it is set in another way"
            )
    return tuple((name, _line(text, f"the header {name}")) for name, text in value.items())


def _attachments(value: object) -> tuple[Attachment, ...]:
    if value is None:
        return ()
    if not isinstance(value, list):
        raise Unfit("INVALID_PAYLOAD", "attachments must be a list")
    return tuple(_attachment(item, f"attachments[{n}]") for n, item in enumerate(value))


def _attachment(item: object, what: str) -> Attachment:
    if not isinstance(item, dict):
        raise Unfit("INVALID_PAYLOAD", f"{what} must be an object")
    _only(item, ATTACHMENT_FIELDS, what)
    kind = _line(item.get("content_type", "application/octet-stream"), f"{what}.content_type")
    if not _CONTENT_TYPE.fullmatch(kind.lower()):
        raise Unfit("INVALID_ATTACHMENT", f"{what}.content_type must be type/subtype of one part")
    encoded = item.get("content_base64")
    if not isinstance(encoded, str):
        raise Unfit("INVALID_ATTACHMENT", f"{what}.content_base64 must be text")
    try:
        content = b64decode(encoded, validate=True)
    except (binascii.Error, ValueError) as error:
        raise Unfit("INVALID_ATTACHMENT", f"{what}.content_base64: {error}") from None
    return Attachment(_line(item.get("filename"), f"{what}.filename"), kind.lower(), content)

"""
From a claim to a request: where, by which method, with which headers and body. Pure.

Only the relay sets the headers of the connection, and those that come from settings, signatures and
idempotency. The application's headers of these names are left out, because a receiver could not
know which of two to use.
"""

import base64
import json
import re
from typing import Final, NamedTuple
from urllib.parse import quote

from outbox_core.contract.publishers.http import HttpSettings
from outbox_core.model.attempt import Refused
from outbox_core.model.event import Claim
from outbox_relay.publishers.http import documents
from outbox_relay.publishers.http.documents import Unfit
from outbox_relay.publishers.http.urls import (
    Place,
    check_template,
    event_template,
    illegal_url,
    place_of,
)
from outbox_relay.publishers.messages import CloudEventHeaders, Headers, headers_for, refused

IDEMPOTENCY_HEADERS: Final = ("idempotency-key", "x-idempotency-key")
TENANT_HEADER: Final = "x-tenant-id"
OF_THE_CONNECTION: Final = frozenset(
    ("connection", "content-length", "expect", "host", "http2-settings", "keep-alive", "te")
) | {"proxy-authorization", "proxy-connection", "trailer", "transfer-encoding", "upgrade"}
TOKEN: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,200}")
PRINTABLE: Final = "".join(map(chr, range(0x21, 0x7F)))
IN_CLOUD_EVENTS: Final = "".join(c for c in PRINTABLE if c not in '"%')
JSON_TYPE: Final = re.compile(r"(?i)(application|text)/(json|[^;]+\+json)\s*(;.*)?")
KNOWN_NAMES: Final = 10_000


class Request(NamedTuple):
    claim: Claim
    place: Place
    method: str
    headers: Headers
    body: bytes
    key: str
    """By which a receiver recognises a second copy."""


class Messages:
    def __init__(self, settings: HttpSettings) -> None:
        self._settings = settings
        self._url = event_template(settings)
        self._check_url = check_template(settings)
        self._trusted = not settings.hosts_from_events
        structured = settings.format == "CloudEvents" and settings.cloud_events_mode == "Structured"
        self._headers = headers_for(settings, "ce-")
        self._attributes = CloudEventHeaders(settings.source, "") if structured else None

    def request(self, claim: Claim) -> Request | Refused:
        try:
            match self._settings.request:
                case "Event":
                    made = self._event(claim)
                case "Payload":
                    made = self._described(claim)
                case "SorUpdate":
                    made = self._change(claim)
        except Unfit as error:
            return refused(error.code, str(error))
        except UnicodeError as error:  # a lone surrogate, which JSON can contain
            return refused("INVALID_PAYLOAD", str(error))
        except RecursionError:  # what can barely be read cannot always be written
            return refused("INVALID_PAYLOAD", "the payload is nested too deeply")
        if isinstance(made, Request) and len(made.body) > self._settings.max_message_bytes:
            limit = self._settings.max_message_bytes
            text = f"the body has {len(made.body)} bytes, and maxMessageBytes is {limit}"
            return refused("TOO_LARGE", text)
        return made

    def check(self, request: Request) -> Place | Refused | None:
        """Where to ask whether it has arrived, if anywhere."""
        if self._check_url is None:
            return None
        values = {**request.claim._asdict(), "idempotency_key": request.key}
        try:
            url = self._check_url.fill(values)
        except UnicodeError as error:
            return refused("INVALID_PAYLOAD", str(error))
        return url if isinstance(url, Refused) else place_of(url, trusted=True)

    def _event(self, claim: Claim) -> Request | Refused:
        assert self._url is not None
        url = self._url(claim)
        if isinstance(url, Refused):
            return url
        headers, body = self._headers(claim), claim.payload
        if self._settings.format == "Debezium" and claim.content_type is not None:
            headers.append(("content-type", claim.content_type))
        if self._attributes is not None:
            headers, body = self._structured(claim, self._attributes)
        key = claim.idempotency_key or claim.event_id
        place = place_of(url, self._trusted)
        return Request(claim, place, self._settings.method, headers, body, key)

    def _described(self, claim: Claim) -> Request | Refused:
        document = documents.read(claim)
        url = documents.needed(document, "url")
        if why := illegal_url(url):
            return refused("INVALID_URL", f"{url[:200]!r} is not a legal URL: {why}")
        return Request(
            claim,
            place_of(url, self._trusted),
            documents.method_of(document, self._settings.method),
            [*documents.headers_of(document), *_about(claim)],
            documents.body_of(claim, document),
            documents.key_of(claim, document),
        )

    def _change(self, claim: Claim) -> Request | Refused:
        assert self._url is not None
        document = documents.read(claim)
        names = {name: documents.needed(document, name) for name in ("entity_type", "entity_id")}
        url = self._url.fill({**claim._asdict(), **names})
        if isinstance(url, Refused):
            return url
        headers = [("content-type", documents.JSON), *_about(claim)]
        if tenant := claim.tenant_id or documents.text_of(document, "tenant_id"):
            headers.append((TENANT_HEADER, tenant))
        return Request(
            claim,
            place_of(url, self._trusted),
            self._settings.method,
            headers,
            documents.change_of(claim, document, self._settings.source),
            documents.key_of(claim, document),
        )

    def _structured(self, claim: Claim, attributes: CloudEventHeaders) -> tuple[Headers, bytes]:
        """CloudEvents' JSON format; the application's headers stay headers."""
        own = attributes(
            claim._replace(headers_json=None, content_type=None, traceparent_in_metadata=None)
        )
        everything = self._headers(claim)
        headers: Headers = [
            header
            for header in everything[: len(everything) - len(own)]
            if header[0].lower() != "content-type"
        ]
        headers.append(("content-type", "application/cloudevents+json; charset=utf-8"))
        document = {name: value for name, value in own if name != "outbox-attempt"}
        headers.append(("outbox-attempt", str(claim.attempts)))
        kind = claim.content_type
        if kind is not None:
            document["datacontenttype"] = kind
        if (kind is None or JSON_TYPE.fullmatch(kind)) and _is_json(claim.payload):
            # As it is: numbers would lose digits on the way through Python.
            return headers, documents.as_json(document)[:-1] + b',"data":' + claim.payload + b"}"
        document["data_base64"] = base64.b64encode(claim.payload).decode()
        return headers, documents.as_json(document)


def _about(claim: Claim) -> Headers:
    return [("outbox-event-id", claim.event_id), ("outbox-attempt", str(claim.attempts))]


def _is_json(payload: bytes) -> bool:
    try:
        json.loads(payload.decode(), parse_constant=documents.refuse_number)
    except (ValueError, RecursionError):
        return False
    return True


class HeaderWriter:
    """Headers as they go over the wire."""

    def __init__(self, settings: HttpSettings, ours: tuple[str, ...]) -> None:
        """`ours` are names that an event cannot set."""
        names = (*settings.headers, *ours, *IDEMPOTENCY_HEADERS)
        self._ours = OF_THE_CONNECTION | {name.lower() for name in names}
        always = {"user-agent": "outbox-relay", "accept": "*/*"}
        always |= {name.lower(): value for name, value in settings.headers.items()}
        self._always = "".join(
            f"{n}: {v}\r\n" for n, v in always.items() if n not in OF_THE_CONNECTION
        )
        self._known: dict[str, bool] = {}

    def head(self, request: Request, more: list[tuple[str, str]]) -> bytes:
        """The request line and all headers. Raises Unfit if a header has no legal name."""
        endpoint, target = request.place
        key = _legible(request.key, PRINTABLE + " ")
        parts = [
            f"{request.method} {target} HTTP/1.1\r\nhost: {endpoint.authority}\r\n"
            f"content-length: {len(request.body)}\r\n{self._always}"
            f"idempotency-key: {key}\r\nx-idempotency-key: {key}\r\n"
        ]
        for name, value in request.headers:
            if not self._passes(name):
                continue
            text = "" if value is None else value if isinstance(value, str) else value.decode()
            if name.startswith("ce-"):
                if '"' in text or "%" in text or " " in text or not _is_plain(text):
                    text = _legible(text, IN_CLOUD_EVENTS)
            elif not _is_plain(text):
                text = _legible(text, PRINTABLE + " ")
            parts.append(f"{name}: {text}\r\n")
        parts += [f"{name}: {value}\r\n" for name, value in more]
        parts.append("\r\n")
        return "".join(parts).encode("ascii")

    def question(self, place: Place, more: list[tuple[str, str]]) -> bytes:
        """The head of a GET."""
        lines = "".join(f"{name}: {value}\r\n" for name, value in more)
        host = place.endpoint.authority
        return (f"GET {place.target} HTTP/1.1\r\nhost: {host}\r\n{self._always}{lines}\r\n").encode(
            "ascii"
        )

    def _passes(self, name: str) -> bool:
        passes = self._known.get(name)
        if passes is None:
            if not TOKEN.fullmatch(name):
                raise Unfit("INVALID_HEADER", f"{name[:100]!r} is not a header name")
            if len(self._known) >= KNOWN_NAMES:
                self._known.clear()
            passes = self._known[name] = name.lower() not in self._ours
        return passes


def _is_plain(text: str) -> bool:
    return text.isascii() and text.isprintable()


def _legible(text: str, safe: str) -> str:
    return text if _is_plain(text) and safe.endswith(" ") else quote(text, safe=safe)

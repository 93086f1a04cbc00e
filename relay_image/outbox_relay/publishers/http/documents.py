"""
Events whose payload is JSON that describes an effect: a webhook to call (request: Payload), or a
change of a system of record (request: SorUpdate). Pure.
"""

import hashlib
import json
import math
import re
from collections.abc import Mapping
from typing import Any, Final

from outbox_core.model.event import Claim
from outbox_relay.publishers.messages import Headers, utc

JSON: Final = "application/json"
METHODS: Final = ("POST", "PUT", "PATCH")
_BLANKS: Final = re.compile(r"[ \t\n\r]*")
_DECODER: Final = json.JSONDecoder()


class Unfit(Exception):
    """The payload does not describe what it should: code and text, for people."""

    @property
    def code(self) -> str:
        return str(self.args[0])

    def __str__(self) -> str:
        return str(self.args[1])


def refuse_number(text: str) -> float:
    """Python reads NaN and Infinity, which JSON does not have."""
    raise ValueError(f"{text[:50]} is not a JSON number, or is too large")


def _number(text: str) -> float:
    found = float(text)
    # Infinity would be written as such.
    return found if math.isfinite(found) else refuse_number(text)


def read(claim: Claim) -> Mapping[str, Any]:
    try:
        found = json.loads(claim.payload, parse_constant=refuse_number, parse_float=_number)
    except ValueError as error:
        raise Unfit("INVALID_PAYLOAD", f"the payload is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise Unfit("INVALID_PAYLOAD", "the payload is not a JSON object")
    return found


def text_of(document: Mapping[str, Any], name: str) -> str | None:
    value = document.get(name)
    if value is None or value == "":
        return None
    if not isinstance(value, str):
        raise Unfit("INVALID_PAYLOAD", f"{name} in the payload is not a string")
    return value


def needed(document: Mapping[str, Any], name: str) -> str:
    value = text_of(document, name)
    if value is None:
        raise Unfit("INVALID_PAYLOAD", f"the payload has no {name}")
    return value


def key_of(claim: Claim, document: Mapping[str, Any]) -> str:
    return text_of(document, "idempotency_key") or claim.idempotency_key or claim.event_id


def method_of(document: Mapping[str, Any], default: str) -> str:
    method = (text_of(document, "method") or default).upper()
    if method not in METHODS:
        raise Unfit("INVALID_PAYLOAD", f"method is {method[:20]!r}, not one of {METHODS}")
    return method


def headers_of(document: Mapping[str, Any]) -> Headers:
    given = document.get("headers") or {}
    if not isinstance(given, dict) or not all(isinstance(v, str) for v in given.values()):
        raise Unfit("INVALID_PAYLOAD", "headers in the payload is not an object of strings")
    headers: Headers = list(given.items())
    if "body" in document and not any(name.lower() == "content-type" for name in given):
        headers.append(("content-type", JSON))
    return headers


def body_of(claim: Claim, document: Mapping[str, Any]) -> bytes:
    return _written(claim.payload, "body") if "body" in document else b""


def change_of(claim: Claim, document: Mapping[str, Any], source: str) -> bytes:
    """A proposed change. It is the same at every attempt, so that a service can compare."""
    if "change" not in document:
        raise Unfit("INVALID_PAYLOAD", "the payload has no change")
    change = document["change"]
    around = as_json(
        {
            "entity_type": needed(document, "entity_type"),
            "entity_id": needed(document, "entity_id"),
            "source_id": f"{source}:{key_of(claim, document)}",
            "source_hash": hashlib.sha256(canonical(change)).hexdigest(),
            "timestamp": utc(claim.happened_at),
            "inference": False,
        }
    )
    parts = [_written(claim.payload, name) for name in ("change", "evidence_pack")]
    return b'%b,"change":%b,"evidence":%b}' % (around[:-1], *parts)


def _written(payload: bytes, name: str) -> bytes:
    """A member of the payload (a JSON object), exactly as it is written there, or null: numbers
    would lose digits on the way through Python."""
    text = payload.decode(json.detect_encoding(payload))
    found = "null"
    at = _after_blanks(text, 0) + 1
    while text[at := _after_blanks(text, at)] != "}":
        if text[at] == ",":
            at = _after_blanks(text, at + 1)
        member, at = _DECODER.raw_decode(text, at)
        start = _after_blanks(text, _after_blanks(text, at) + 1)
        _, at = _DECODER.raw_decode(text, start)
        if member == name:  # the last one counts, as for other readers of JSON
            found = text[start:at]
    return found.encode()


def _after_blanks(text: str, at: int) -> int:
    blanks = _BLANKS.match(text, at)
    assert blanks is not None  # it also matches nothing
    return blanks.end()


def canonical(value: object) -> bytes:
    """One text for equal values: keys sorted, no spaces, UTF-8."""
    text = json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return text.encode(errors="backslashreplace")


def as_json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()

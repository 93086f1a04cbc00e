"""
Events whose payload is JSON that describes an effect: a webhook to call (request: Payload), or a
change of a system of record (request: SorUpdate). Pure.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final

from outbox_core.model.event import Claim
from outbox_relay.publishers.messages import Headers, utc

JSON: Final = "application/json"
METHODS: Final = ("POST", "PUT", "PATCH")


class Unfit(Exception):
    """The payload does not describe what it should: code and text, for people."""

    @property
    def code(self) -> str:
        return str(self.args[0])

    def __str__(self) -> str:
        return str(self.args[1])


def read(claim: Claim) -> Mapping[str, Any]:
    try:
        found = json.loads(claim.payload)
    except (ValueError, RecursionError):
        raise Unfit("INVALID_PAYLOAD", "the payload is no JSON") from None
    if not isinstance(found, dict):
        raise Unfit("INVALID_PAYLOAD", "the payload is no JSON object")
    return found


def text_of(document: Mapping[str, Any], name: str) -> str | None:
    value = document.get(name)
    if value is None or value == "":
        return None
    if not isinstance(value, str):
        raise Unfit("INVALID_PAYLOAD", f"{name} in the payload is no text")
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
        raise Unfit("INVALID_PAYLOAD", "headers in the payload is no object of texts")
    headers: Headers = list(given.items())
    if "body" in document and not any(name.lower() == "content-type" for name in given):
        headers.append(("content-type", JSON))
    return headers


def body_of(document: Mapping[str, Any]) -> bytes:
    return as_json(document["body"]) if "body" in document else b""


def change_of(claim: Claim, document: Mapping[str, Any], source: str) -> bytes:
    """A proposed change. Whenever it is sent, it is the same: so a service may compare."""
    if "change" not in document:
        raise Unfit("INVALID_PAYLOAD", "the payload has no change")
    change = document["change"]
    return as_json(
        {
            "entity_type": needed(document, "entity_type"),
            "entity_id": needed(document, "entity_id"),
            "change": change,
            "source_id": f"{source}:{key_of(claim, document)}",
            "source_hash": hashlib.sha256(canonical(change)).hexdigest(),
            "timestamp": utc(claim.occurred_at or claim.created_at),
            "inference": False,
            "evidence": document.get("evidence_pack"),
        }
    )


def canonical(value: object) -> bytes:
    """One text for equal values: keys sorted, no spaces, UTF-8."""
    text = json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return text.encode(errors="backslashreplace")


def as_json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()

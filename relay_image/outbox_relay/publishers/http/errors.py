"""
From an answer, or the lack of one, to an outcome. Pure.

| class | when |
|---|---|
| Acked | 2xx |
| EVENT | 400 404 405 410 413 415 422; a URL that is refused; a body that is too large |
| TRANSIENT | any other answer: 408 425 429, 401 403, 3xx, 5xx |
| DESTINATION | 502 503 504; no connection, no answer, a lost one, where events have several hosts |
| OUTAGE | the same lack of an answer, where all events have one host |
"""

import email.utils
import socket
import ssl
from collections.abc import Callable
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Final, NamedTuple

from outbox_core.model.attempt import (
    READ_CHARS,
    Acked,
    Error,
    ErrorClass,
    Outcome,
    Refused,
    without_secrets,
)

PERMANENT_STATUSES: Final = frozenset((400, 404, 405, 410, 413, 415, 422))
AWAY_STATUSES: Final = frozenset((502, 503, 504))
KEPT_BODY_BYTES: Final = 2000
SHOWN_BODY_CHARS: Final = 300
"""Of a refusal, beside its reason."""


class Answer(NamedTuple):
    status: int
    retry_after: str | None
    body: bytes
    """Its beginning."""

    @property
    def text(self) -> str:
        body = self.body[:KEPT_BODY_BYTES].decode(errors="replace").replace("\x00", "")
        return without_secrets(f"{self.status} {body}".rstrip())


class TimedOut(Exception):
    """By our own clock, whatever the socket reported."""


class Closed(Exception):
    """The publisher was closed before the request began."""


def outcome_of(answer: Answer, now: datetime) -> Outcome:
    status = answer.status
    if 200 <= status < 300:
        return Acked(answer.text)
    if status in PERMANENT_STATUSES:
        kind = ErrorClass.EVENT
    elif status in AWAY_STATUSES:
        kind = ErrorClass.DESTINATION
    else:
        kind = ErrorClass.TRANSIENT
    return Refused(Error.of(kind, f"HTTP_{status}", _described(answer)), after(answer, now))


def outcome_of_check(answer: Answer, now: datetime) -> Outcome | None:
    """What the check's answer means for the event; None: it has not arrived."""
    if 200 <= answer.status < 300:
        return Acked(f"the check found it already there: {answer.text}")
    if answer.status == HTTPStatus.NOT_FOUND:
        return None
    # Whether it arrived is not known: no fault of the event.
    kind = ErrorClass.DESTINATION if answer.status in AWAY_STATUSES else ErrorClass.TRANSIENT
    text = f"the check answered {_described(answer)}"
    return Refused(Error.of(kind, f"CHECK_{answer.status}", text), after(answer, now))


def is_answer(error: Error) -> bool:
    """Whether an endpoint itself answered, and not that it is away."""
    return error.kind is not ErrorClass.DESTINATION and error.code.startswith("HTTP_")


def failure(
    error: Exception, where: str, kind: ErrorClass, hide: Callable[[bytes], bytes] = bytes
) -> Refused:
    """No answer: the request may have arrived or not. `hide` removes our secrets from what the
    error repeats, before that is cut: it would not find half a secret."""
    code, text = _named(error)
    shown = hide(text[:READ_CHARS].encode(errors="replace")).decode(errors="replace")
    return Refused(Error.of(kind, code, f"{where}: {shown}"))


def after(answer: Answer, now: datetime) -> float:
    """Seconds, by Retry-After: a number, or a date."""
    value = (answer.retry_after or "").strip()
    if not value:
        return 0.0
    if value.isascii() and value.isdigit():
        return float(value[:9])
    try:
        moment = email.utils.parsedate_to_datetime(value)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        return max(0.0, (moment - now).total_seconds())
    except (ValueError, OverflowError):  # not a date, or one beyond the calendar
        return 0.0


def _described(answer: Answer) -> str:
    try:
        phrase = HTTPStatus(answer.status).phrase
    except ValueError:
        phrase = ""
    # Hidden before it is cut: half of a login in a URL does not look like one.
    body = without_secrets(answer.body.decode(errors="replace"))[:SHOWN_BODY_CHARS].strip()
    return f"{answer.status} {phrase}{': ' if body else ''}{body}"


def _named(error: Exception) -> tuple[str, str]:
    match error:
        case TimedOut() | TimeoutError():
            return "TIMEOUT", str(error) or "no answer in time"
        case ssl.SSLError():
            return "TLS", error.reason or str(error)
        case socket.gaierror():
            return "DNS", error.strerror or str(error)
        case ConnectionRefusedError():
            return "CONNECTION_REFUSED", "connection refused"
        case ConnectionError():
            return "CONNECTION_LOST", str(error) or "the connection was lost before the answer"
        case OSError():
            return "NETWORK", error.strerror or str(error)
        case _:
            return "BAD_ANSWER", f"{type(error).__name__}: {error}"

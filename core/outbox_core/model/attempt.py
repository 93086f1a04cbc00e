"""
One attempt: what the publisher reports (Outcome), and what follows from it (Verdict).

Outcomes are values, not exceptions: one event's failure is no reason to lose its neighbours'
answers. `retry.judge` turns the first into the second; `store.deliveries` stores it.
"""

import re
from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from outbox_core.model.lifecycle import Hold, State

MAX_ERROR_CHARS = 500
READ_CHARS = 20_000
"""How much of a text from others is read to make an error of it: some servers send megabytes."""

LONGEST_RETRY_AFTER_SECONDS = 3600.0
"""A destination that asks us to wait longer is tried again after this time anyway: its answer may
be a mistake (a date in another year), and a day of events might wait for it unnoticed."""


class ErrorClass(StrEnum):
    EVENT = "event"
    """The event itself cannot be published, ever (too large, illegal topic): DEAD at once."""
    TRANSIENT = "transient"
    """It may work next time: retried within the event's budget."""
    OUTAGE = "outage"
    """The broker, not the event: retried for as long as it takes, without touching the budget."""
    DESTINATION = "destination"
    """This topic or endpoint, while the broker and others work: retried as in an outage."""
    CRASH = "crash"
    """The lease expired: the relay died or hung while it had the event."""
    EXPIRED = "expired"
    """Older than the relay's maxAge."""
    OPERATOR = "operator"
    """A person decided it."""


SECRET = re.compile(
    # A name that suggests a secret (perhaps quoted, or the end of a longer name), and its value.
    # Matched only from the start of a word: from each of its letters, a long word takes minutes.
    r"(?is)((?<![\w.-])[\w.-]*(?:password|passwd|pwd|secret|token|api[-_]?key|authorization|jaas\.config)"
    r"\\*[\"']?\s*[=:]\s*(?:(?:bearer|basic|token|api-?key)\s+)?)"
    # A quoted value may contain quotes, be JSON within JSON (\"...\"), or be cut off.
    r"(?:\"(?:[^\"\\]|\\.)*\"?|'(?:[^'\\]|\\.)*'?|\\+\"[^\"]*\"?|\\+'[^']*'?|[^\s,;}\"']+)"
)
LOGIN = re.compile(
    # User and password in a URL. Text without an "@" is matched too, and left as it is: if it were
    # searched again from each "://" within it, a long one would take minutes.
    r"(://[^:/@\s]*:)([^@\s]+)(@?)"
)


def without_secrets(text: str) -> str:
    """Errors end up in tables, logs and status: what looks like a credential does not."""
    shown = LOGIN.sub(lambda m: f"{m[1]}***@" if m[3] else m[0], text)
    return SECRET.sub(lambda m: f"{m[1]}***", shown)


def storable(text: str) -> str:
    """Without what a broker can send and PostgreSQL cannot store: NUL, and lone surrogates, which
    JSON can contain."""
    return text.replace("\x00", "").encode(errors="replace").decode()


class Error(NamedTuple):
    """Why it failed: stored as last_error, grouped by code, shown to people."""

    kind: ErrorClass
    code: str
    text: str

    @classmethod
    def of(cls, kind: ErrorClass, code: str, text: str) -> "Error":
        """Bounded, storable, and without anything that looks like a credential."""
        clean = storable(without_secrets(text[:READ_CHARS]))
        if len(clean) > MAX_ERROR_CHARS:
            clean = clean[: MAX_ERROR_CHARS - 1] + "…"
        return cls(kind, storable(code)[:100], clean)


class Acked(NamedTuple):
    """The broker has it. `result` is its answer, e.g. orders[3]@1042."""

    result: str


class Refused(NamedTuple):
    """It was tried and failed, or is in doubt."""

    error: Error
    after: float = 0.0
    """Seconds before which another attempt is pointless, if the refusal named them
    (Retry-After)."""


class Unsent(NamedTuple):
    """It was not tried: an earlier event of its key stood in the way, its destination takes nothing
    now, or we were stopped."""

    reason: str
    after: float = 0.0
    """Seconds before which an attempt is pointless."""


Outcome = Acked | Refused | Unsent


def all_acked(outcomes: Sequence[Outcome | None]) -> bool:
    """Called several times for every batch, so it leaves the loop to C."""
    return {Acked}.issuperset(map(type, outcomes))


class Verdict(NamedTuple):
    """What becomes of a claim that did not end in PUBLISHED."""

    seq: int
    token: int
    state: State
    hold: Hold = Hold.NONE
    delay: float = 0.0
    """Seconds, counted by the database's clock, until it may be claimed again."""
    refund: bool = False
    """It does not count as an attempt: attempts_base grows, so the budget is not touched."""
    crashed: bool = False
    error: Error | None = None

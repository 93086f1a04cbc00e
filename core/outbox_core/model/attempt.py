"""
One attempt: what the publisher reports (Outcome), and what follows from it (Verdict).

Outcomes are values, not exceptions: one event's failure is no reason to lose its neighbours'
answers. `retry.judge` turns the first into the second; `store.deliveries` writes it down.
"""

import re
from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from outbox_core.model.lifecycle import Hold, State

MAX_ERROR_CHARS = 500
READ_CHARS = 20_000
"""Of a text from others, to make an error of its beginning: some servers send megabytes."""

LONGEST_RETRY_AFTER_SECONDS = 3600.0
"""What asks us to wait longer is tried again after this time anyway: the answer may be a mistake
(a date in another year), and nobody would notice that a day of events waits for it."""


class ErrorClass(StrEnum):
    EVENT = "event"
    """The event itself cannot be published, ever (too large, illegal topic): DEAD at once."""
    TRANSIENT = "transient"
    """It may work next time: retried within the event's budget."""
    OUTAGE = "outage"
    """The broker, not the event: retried for as long as it takes, the budget is not touched."""
    DESTINATION = "destination"
    """This topic or endpoint, while the broker and others work: retried as in an outage."""
    CRASH = "crash"
    """The lease expired: the relay died or hung while it had the event."""
    EXPIRED = "expired"
    """Older than the relay's maxAge."""
    OPERATOR = "operator"
    """Somebody decided it by hand."""


SECRET = re.compile(
    # a name that means a secret, perhaps quoted, perhaps the end of a longer one; and its value.
    # From the start of a word only: from each of its letters, a long one takes minutes
    r"(?is)((?<![\w.-])[\w.-]*(?:password|passwd|pwd|secret|token|api[-_]?key|authorization|jaas\.config)"
    r"\\*[\"']?\s*[=:]\s*(?:(?:bearer|basic|token|api-?key)\s+)?)"
    # A quoted value may have quotes, or be JSON within JSON (\"...\"), or be cut.
    r"(?:\"(?:[^\"\\]|\\.)*\"?|'(?:[^'\\]|\\.)*'?|\\+\"[^\"]*\"?|\\+'[^']*'?|[^\s,;}\"']+)"
)
LOGIN = re.compile(
    # user and password in a URL. What has no "@" is taken as well, to be left as it is: searched
    # again from each "://" within it, a long one takes minutes
    r"(://[^:/@\s]*:)([^@\s]+)(@?)"
)


def without_secrets(text: str) -> str:
    """Errors end up in tables, logs and status: what looks like a credential does not."""
    shown = LOGIN.sub(lambda m: f"{m[1]}***@" if m[3] else m[0], text)
    return SECRET.sub(lambda m: f"{m[1]}***", shown)


def storable(text: str) -> str:
    """Without what a broker can say and PostgreSQL cannot keep: NUL, and half a character, which
    JSON can write."""
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
    """It was tried and did not work, or nobody knows whether it worked."""

    error: Error
    after: float = 0.0
    """Seconds before which another try is of no use, where the refusal said so (Retry-After)."""


class Unsent(NamedTuple):
    """It was not tried: an earlier event of its key stood in the way, its destination takes nothing
    now, or we were stopped."""

    reason: str
    after: float = 0.0
    """Seconds before which it is of no use to try."""


Outcome = Acked | Refused | Unsent


def all_acked(outcomes: Sequence[Outcome | None]) -> bool:
    """Asked of every batch, by several: it costs the less the fewer steps are Python's."""
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
    """It was no attempt of its own: attempts_base grows, so that the budget is not touched."""
    crashed: bool = False
    error: Error | None = None

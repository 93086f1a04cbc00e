"""
Which stream has a subject, and whether it takes atomic batches: asked of the server, remembered for
a while.

What is remembered is a guess: if it is wrong, the server refuses the whole batch, and its events
are sent one by one. A relay that may not ask publishes without atomic batches.
"""

import json
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from outbox_core.contract.publishers.nats import NatsSettings
from outbox_core.model.attempt import Error, ErrorClass
from outbox_relay.publishers.nats.connection import Connection, Reply
from outbox_relay.publishers.nats.errors import DENIED

NAMES = "$JS.API.STREAM.NAMES"
INFO = "$JS.API.STREAM.INFO."
FIRST_WITH_ATOMIC = (2, 12)
REMEMBER_SECONDS = 60.0
REMEMBER_NONE_SECONDS = 10.0
MOST_SUBJECTS_REMEMBERED = 20_000
PATIENCE_SECONDS = 2.0
MOST_SUBJECTS_AT_ONCE = 1000


class Remembered(NamedTuple):
    atomic_stream: str | None
    until: float


class Streams:
    """Shared by the threads that publish."""

    def __init__(self, settings: NatsSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._clock = clock
        self._remembered: dict[str, Remembered] = {}

    def atomic_stream(self, subject: str) -> str | None:
        """The stream, if it is known to take atomic batches. No IO."""
        known = self._remembered.get(subject)
        return None if known is None else known.atomic_stream

    def learn(self, connection: Connection, subjects: Iterable[str], until: float) -> None:
        """Ask about the subjects that are not remembered, or no longer."""
        if self._settings.atomic == "Never" or connection.version < FIRST_WITH_ATOMIC:
            self._remembered.clear()  # it may be another server than before
            return
        now = self._clock()
        fresh = {s for s in subjects if (k := self._remembered.get(s)) is None or k.until < now}
        if not fresh:
            return
        if len(self._remembered) > MOST_SUBJECTS_REMEMBERED:
            self._remembered.clear()
        asked = sorted(fresh)[:MOST_SUBJECTS_AT_ONCE]
        until = min(until, now + PATIENCE_SECONDS)
        stream_of = self._streams_of(connection, asked, until)
        names = sorted({name for name in stream_of.values() if name is not None})
        infos = connection.request([(INFO + name, None) for name in names], until)
        atomic = {
            name
            for name, reply in zip(names, infos, strict=True)
            if config_of(reply).get("allow_atomic")
        }
        for subject in asked:
            name = stream_of.get(subject)
            found = name if name in atomic else None
            lasts = REMEMBER_NONE_SECONDS if found is None else REMEMBER_SECONDS
            self._remembered[subject] = Remembered(found, now + lasts)

    def forget(self, stream: str) -> None:
        """It refused a batch because it was atomic: ask again soon."""
        again = self._clock() + REMEMBER_NONE_SECONDS
        for subject, known in list(self._remembered.items()):
            if known.atomic_stream == stream:
                self._remembered[subject] = Remembered(None, again)

    def _streams_of(
        self, connection: Connection, subjects: list[str], until: float
    ) -> dict[str, str | None]:
        if self._settings.stream is not None:
            return dict.fromkeys(subjects, self._settings.stream)
        return {
            subject: names[0] if len(names := names_of(reply) or []) == 1 else None
            for subject, reply in zip(subjects, ask_names(connection, subjects, until), strict=True)
        }


def why_nobody_answered(
    connection: Connection, subjects: Iterable[str], until: float
) -> dict[str, Error]:
    """
    No responders: there is no stream, it has no leader, or there is no JetStream at all.

    All subjects are asked about at once, because an answer may take its time. It is the event's own
    fault only if the server answers that there is no stream: servers without a leader answer with
    an error or not at all, and this one may have lost the others.
    """
    asked = sorted(set(subjects))
    until = min(until, time.monotonic() + PATIENCE_SECONDS)
    replies = ask_names(connection, asked, until) if asked else []
    why = {s: _why(s, reply) for s, reply in zip(asked, replies, strict=True)}
    # Then the next connection is made to another server.
    connection.broken |= any(error.kind is ErrorClass.OUTAGE for error in why.values())
    return why


def _why(subject: str, reply: Reply | None) -> Error:
    if reply is not None and reply.status == DENIED:
        text = f"nothing answers for {subject}, and the relay may not publish to {NAMES} to ask why"
        return Error.of(ErrorClass.DESTINATION, "STREAM_NOT_READY", text)
    names = names_of(reply)
    if names is None:
        text = "JetStream does not answer: it is not enabled for this account, or not ready"
        return Error.of(ErrorClass.OUTAGE, "NO_JETSTREAM", text)
    if names:
        text = f"stream {names[0]} does not answer: it has no leader, or is not ready"
        return Error.of(ErrorClass.DESTINATION, "STREAM_NOT_READY", text)
    # As for an unknown topic of Kafka: retried, because somebody may create it, but not forever.
    return Error.of(ErrorClass.TRANSIENT, "NO_STREAM", f"no stream has the subject {subject}")


def ask_names(connection: Connection, subjects: list[str], until: float) -> list[Reply | None]:
    return connection.request([(NAMES, {"subject": subject}) for subject in subjects], until)


def names_of(reply: Reply | None) -> list[str] | None:
    """None: the answer does not list them."""
    answer = answer_of(reply)
    names = answer.get("streams") or []
    known = "total" in answer and "error" not in answer and isinstance(names, list)
    named = known and all(isinstance(name, str) and name.isprintable() for name in names)
    return names if named else None


def config_of(reply: Reply | None) -> dict[str, Any]:
    config = answer_of(reply).get("config")
    return config if isinstance(config, dict) else {}


def answer_of(reply: Reply | None) -> dict[str, Any]:
    """Empty if there is none, or none that can be read."""
    if reply is None or reply.status:
        return {}
    try:
        answer = json.loads(reply.body)
    except (ValueError, RecursionError):
        return {}
    readable = isinstance(answer, dict) and isinstance(answer.get("error", {}), dict)
    return answer if readable else {}

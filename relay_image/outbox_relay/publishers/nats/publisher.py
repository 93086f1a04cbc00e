"""
NATS JetStream: acknowledged when the stream has stored it. One call is one attempt.

Events of a stream that allows it go in atomic batches, unless they are few: all are stored or none
is, so no event of a key arrives without those before it. If such a batch is refused, nothing of it
is stored, and its events are sent one by one in the same attempt: one of them may be at fault, or
may already be stored by an attempt whose answer was lost (a batch with one duplicate is refused as
a whole).

Events that are sent one by one may fail alone, so there a relay in order sends one event of each
key at a time.
"""

import logging
import random
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from datetime import timedelta

from outbox_core.contract.publishers.nats import NatsSettings
from outbox_core.errors import BrokerRefused, OutboxError, PublisherError
from outbox_core.model.attempt import (
    Error,
    ErrorClass,
    Outcome,
    Refused,
    Unsent,
    all_acked,
)
from outbox_core.model.event import Claim
from outbox_core.model.ordering import BEHIND, KeyOrder
from outbox_relay.publishers.destinations import Destinations
from outbox_relay.publishers.nats.check import check_nats
from outbox_relay.publishers.nats.connection import Connection
from outbox_relay.publishers.nats.errors import ATOMIC_DISABLED, DUPLICATE_IN_BATCH, Problem
from outbox_relay.publishers.nats.messages import Message, Messages, subject_template, too_large
from outbox_relay.publishers.nats.sender import BATCH_OVERHEAD_BYTES, send_atomically, send_each
from outbox_relay.publishers.nats.streams import Streams
from outbox_relay.publishers.parking import Parked
from outbox_relay.publishers.protocol import CheckResult, Sample

log = logging.getLogger(__name__)

MOST_EVENTS_AT_ONCE = 1000
"""The server's limit of an atomic batch."""
MOST_BYTES_AT_ONCE = 8 << 20
FEWEST_EVENTS_IN_BATCH = 8
"""Fewer arrive sooner one by one. Measured on a disk that syncs in 0.4 ms: any batch takes the
server 5 to 15 ms, a single event with its own sync about 0.6 ms. There both cost the same at about
twelve events; where a sync takes longer, at fewer."""
CONNECT_SECONDS = 5.0
"""For each server: one that hangs must not take the time of the others."""
PROBE_SECONDS = 5.0
UNPROVEN_AFTER_SECONDS = 15.0
"""A connection that was idle for longer is tested first: a firewall on the way may have forgotten
it."""
PUBLISHER_CLOSED = Unsent("the publisher is closed")
NO_TIME_LEFT = Unsent("not sent: no time was left, or the connection was lost before")


class NatsPublisher:
    def __init__(self, settings: NatsSettings, in_order: bool) -> None:
        self._settings = settings
        self._in_order = in_order
        self._timeout = settings.delivery_timeout.total_seconds()
        self._messages = Messages(settings)
        self._streams = Streams(settings)
        self._subjects = Destinations(
            self._messages.subject, self._deliver, self._timeout, time.monotonic
        )
        # Relays begin with different servers. Each stays with one that answers, and tries last one
        # that did not: it may be frozen, or cut off from the others of its cluster.
        self._servers = random.sample(settings.servers, len(settings.servers))
        # A connection belongs to one call at a time: calls neither wait for each other nor lose
        # their messages with another's connection.
        self._changed = threading.Condition()
        self._idle: list[Connection] = []
        self._busy: set[Connection] = set()
        self._closed = False

    def publish(self, batch: Sequence[Claim]) -> Sequence[Outcome]:
        return self._subjects.publish(batch)

    def blame(self, batch: Sequence[Claim], outcomes: Sequence[Outcome]) -> Sequence[Outcome]:
        return self._subjects.blame(batch, outcomes)

    def parked(self) -> Sequence[Parked]:
        return self._subjects.parked()

    def route(self, claim: Claim) -> Hashable | None:
        """
        Stream and subject, if the stream is known to take atomic batches: that is known after the
        first call. The stream alone is not enough: a subject may be parked, and then its events
        stay behind while those of the stream's other subjects go out.
        """
        subject = self._messages.subject(claim) if self._in_order else None
        stream = None if subject is None else self._streams.atomic_stream(subject)
        return None if stream is None else (stream, subject)

    def probe(self) -> None:
        # A new one each time: it also shows whether we would be let in now.
        self._connect_soon().close()

    def check(self, samples: Sequence[Sample]) -> Sequence[CheckResult]:
        try:
            connection = self._connect_soon()
        except OutboxError as error:
            return [CheckResult("fail", str(error))]
        try:
            subjects = subject_template(self._settings).names(samples)
            return check_nats(self._settings, connection, subjects)
        finally:
            connection.close()

    def close(self, timeout: timedelta) -> None:
        deadline = time.monotonic() + timeout.total_seconds()
        with self._changed:
            self._closed = True
            for connection in self._busy:
                connection.stop_at = deadline
            # A little longer: a call that stops at the deadline still has outcomes to return.
            self._changed.wait_for(lambda: not self._busy, timeout.total_seconds() + 2)
            for connection in self._idle:
                connection.close()
            self._idle.clear()

    def _deliver(self, batch: Sequence[Claim], patience: float | None) -> Sequence[Outcome]:
        waited = self._timeout if patience is None else min(self._timeout, patience)
        until = time.monotonic() + waited
        if not batch:
            return []
        try:
            connection = self._take(until)
        except OutboxError as error:
            code = "NOT_LET_IN" if isinstance(error, BrokerRefused) else "NO_CONNECTION"
            return [Refused(Error.of(ErrorClass.OUTAGE, code, str(error)))] * len(batch)
        if connection is None:
            return [PUBLISHER_CLOSED] * len(batch)
        try:
            return self._send(connection, batch, until)
        except BaseException:
            connection.close()
            raise
        finally:
            self._give_back(connection)

    def _send(
        self, connection: Connection, batch: Sequence[Claim], until: float
    ) -> Sequence[Outcome]:
        order = KeyOrder(self._in_order)
        outcomes: dict[int, Outcome] = {}
        made: dict[int, Message] = {}
        largest = connection.max_payload - BATCH_OVERHEAD_BYTES
        for claim in batch:
            if order.failed_keys and order.blocks(claim):
                continue
            message = self._messages.make(claim)
            if isinstance(message, Message) and message.size > connection.max_payload - 14:
                message = too_large(message.size, f"max_payload is {connection.max_payload}")
            if isinstance(message, Message):
                made[claim.seq] = message
            else:
                outcomes[claim.seq] = message
                order.fail(claim)
        subjects = {message.subject for message in made.values()}
        self._streams.learn(connection, subjects, until)
        # Read once: what another call learns meanwhile must not separate a key's events.
        atomic = {subject: self._streams.atomic_stream(subject) for subject in subjects}
        if connection.broken:
            lost = Error.of(ErrorClass.OUTAGE, "CONNECTION_LOST", connection.why_lost)
            outcomes |= dict.fromkeys(made, Refused(lost))

        def stream_of(claim: Claim) -> str | None:
            message = made[claim.seq]
            if message.size > largest:
                return None  # no room for the headers of a batch
            return atomic[message.subject]

        sendable = [claim for claim in batch if claim.seq in made]
        for wave in order.waves(sendable, stream_of):
            for stream, claims in self._together(wave, made, stream_of):
                claims = [c for c in claims if not order.blocks(c)] if order.failed_keys else claims
                if not claims or connection.broken or time.monotonic() >= until:
                    continue
                self._send_together(connection, stream, claims, made, outcomes, order, until)
        # Events without an outcome were not begun.
        found: list[Outcome] = [
            outcomes.get(claim.seq) or (BEHIND if order.blocks(claim) else NO_TIME_LEFT)
            for claim in batch
        ]
        if all_acked(found):
            return found
        return KeyOrder(self._in_order).settle(batch, found)

    def _together(
        self,
        wave: Sequence[Claim],
        made: dict[int, Message],
        stream_of: Callable[[Claim], str | None],
    ) -> Iterator[tuple[str | None, list[Claim]]]:
        """
        What is sent at once: events of one stream, within the limits.

        Events that were tried before go separately, with the others of their keys: one of them may
        already be stored, and a batch with a duplicate is refused as a whole.
        """
        tried = {c.ordering_key for c in wave if c.attempts > 1 and self._in_order} - {None}
        groups: dict[tuple[str | None, bool], list[Claim]] = {}
        for claim in wave:
            again = claim.attempts > 1 or claim.ordering_key in tried
            groups.setdefault((stream_of(claim), again), []).append(claim)
        for (stream, _), claims in groups.items():
            part: list[Claim] = []
            size = 0
            for claim in claims:
                size += made[claim.seq].size
                if part and (len(part) == MOST_EVENTS_AT_ONCE or size > MOST_BYTES_AT_ONCE):
                    yield stream, part
                    part, size = [], made[claim.seq].size
                part.append(claim)
            yield stream, part

    def _send_together(
        self,
        connection: Connection,
        stream: str | None,
        claims: Sequence[Claim],
        made: dict[int, Message],
        outcomes: dict[int, Outcome],
        order: KeyOrder,
        until: float,
    ) -> None:
        def record(sent: Sequence[Claim], found: Sequence[Outcome]) -> None:
            outcomes.update(zip((c.seq for c in sent), found, strict=True))
            order.saw(sent, found)

        if stream is not None and self._is_worth_a_batch(claims):
            found = send_atomically(connection, [made[c.seq] for c in claims], until)
            if not isinstance(found, Problem):
                record(claims, found)
                return
            self._about_refused_batch(stream, found)
        for wave in order.waves(claims, lambda _: None):
            if connection.broken or time.monotonic() >= until:
                return
            record(wave, send_each(connection, [made[c.seq] for c in wave], until))

    def _is_worth_a_batch(self, claims: Sequence[Claim]) -> bool:
        if len(claims) >= FEWEST_EVENTS_IN_BATCH:
            return True
        # One by one, every event of a key would wait for the answer to the one before it.
        keys = [claim.ordering_key for claim in claims if claim.ordering_key is not None]
        return self._in_order and len(set(keys)) < len(keys)

    def _about_refused_batch(self, stream: str, problem: Problem) -> None:
        if problem.code == ATOMIC_DISABLED:
            self._streams.forget(stream)
        if problem.code != DUPLICATE_IN_BATCH:  # which is usual after a crash
            log.debug("stream %s refused an atomic batch: %s", stream, problem.text)

    def _take(self, until: float) -> Connection | None:
        """None: the publisher is closed."""
        while (idle := self._take_idle()) is not None:
            now = time.monotonic()
            proven = now - idle.used_at < UNPROVEN_AFTER_SECONDS
            try:
                if idle.is_open() and (proven or idle.is_alive(min(until, now + CONNECT_SECONDS))):
                    return idle
            except BaseException:
                idle.broken = True
                self._give_back(idle)
                raise
            self._give_back(idle)
        if self._closed:
            return None
        connection = self._connect(until)
        return connection if self._lend(connection) else None

    def _take_idle(self) -> Connection | None:
        with self._changed:
            if self._closed or not self._idle:
                return None
            connection = self._idle.pop()  # the last one used is the freshest
            self._busy.add(connection)
            return connection

    def _lend(self, connection: Connection) -> bool:
        with self._changed:
            if self._closed:
                connection.close()
                return False
            self._busy.add(connection)
            return True

    def _connect_soon(self) -> Connection:
        return self._connect(time.monotonic() + min(PROBE_SECONDS, self._timeout))

    def _connect(self, until: float) -> Connection:
        """To the first server that lets us in; PublisherError with all reasons if none does."""
        errors: list[PublisherError] = []
        servers = list(self._servers)
        for rest, server in zip(range(len(servers), 0, -1), servers, strict=True):
            now = time.monotonic()
            if now >= until:
                break
            try:
                # Each gets a share of the time that is left: one that hangs must not take it all.
                share = min((until - now) / rest, CONNECT_SECONDS)
                return Connection(self._settings, server, now + share)
            except PublisherError as error:
                errors.append(error)
                self._begin_elsewhere(server)
        refused = any(isinstance(error, BrokerRefused) for error in errors)
        raise (BrokerRefused if refused else PublisherError)(
            "; ".join(map(str, errors)) or "NATS: no time was left to connect"
        )

    def _begin_elsewhere(self, server: str) -> None:
        """The next connection tries this server last."""
        with self._changed:
            self._servers.remove(server)
            self._servers.append(server)

    def _give_back(self, connection: Connection) -> None:
        done = connection.broken or connection.leaving
        if done:
            self._begin_elsewhere(connection.url)
        with self._changed:
            self._busy.discard(connection)
            if done or self._closed:
                connection.close()
            else:
                self._idle.append(connection)
            self._changed.notify_all()

"""
Redis Streams: a call's events of one stream arrive together or not at all, by MULTI and EXEC.

A connection belongs to one call at a time. With `wait`, an event is acknowledged when the replicas
or the disk have it too; if only Redis itself has it in time, it is in doubt.
"""

import threading
import time
from collections.abc import Hashable, Sequence
from datetime import timedelta
from typing import Final

from outbox_core.contract.publishers.redis import RedisSettings
from outbox_core.contract.values import format_duration
from outbox_core.errors import OutboxError
from outbox_core.model.attempt import (
    Acked,
    Error,
    ErrorClass,
    Outcome,
    Refused,
    Unsent,
    all_acked,
)
from outbox_core.model.event import Claim
from outbox_core.model.ordering import KeyOrder
from outbox_relay.publishers.destinations import Destinations
from outbox_relay.publishers.parking import Parked
from outbox_relay.publishers.protocol import CheckResult, Sample
from outbox_relay.publishers.redis.check import ask_server, check_redis
from outbox_relay.publishers.redis.copies import Copies
from outbox_relay.publishers.redis.entries import entries_for, stream_template
from outbox_relay.publishers.redis.errors import ReplyError, error_of
from outbox_relay.publishers.redis.transactions import TOO_LONG, TooLong, Transaction, rounds_of
from outbox_relay.publishers.redis.wire import Address, Broken, Login, Wire

PUBLISHER_CLOSED: Final = Unsent("the publisher is closed")
NO_TIME_LEFT: Final = Unsent("deliveryTimeout was over before its turn")
STREAM_FAILED: Final = Unsent("an earlier event of its stream was not published")
CALL_FAILED: Final = Unsent("the connection failed before its turn")


class RedisPublisher:
    def __init__(self, settings: RedisSettings, in_order: bool) -> None:
        self._settings = settings
        self._in_order = in_order
        self._timeout = settings.delivery_timeout.total_seconds()
        self._entries = entries_for(settings)
        self._copies = Copies(settings.wait)
        self._streams = Destinations(self._stream_of, self._deliver, self._timeout, time.monotonic)
        Address.of(settings)
        Login.read(settings)  # to fail early on a wrong setting
        self._changed = threading.Condition()
        self._idle: list[Wire] = []
        self._busy: set[Wire] = set()
        self._closed = False
        self._last_stream: str | None = None

    def publish(self, batch: Sequence[Claim]) -> Sequence[Outcome]:
        return self._streams.publish(batch)

    def blame(self, batch: Sequence[Claim], outcomes: Sequence[Outcome]) -> Sequence[Outcome]:
        return self._streams.blame(batch, outcomes)

    def parked(self) -> Sequence[Parked]:
        return self._streams.parked()

    def route(self, claim: Claim) -> Hashable | None:
        return self._stream_of(claim)

    def probe(self) -> None:
        ask_server(self._settings, self._last_stream)

    def check(self, samples: Sequence[Sample]) -> Sequence[CheckResult]:
        return check_redis(self._settings, stream_template(self._settings).names(samples))

    def close(self, timeout: timedelta) -> None:
        with self._changed:
            self._closed = True
            self._changed.wait_for(lambda: not self._busy, timeout.total_seconds())
            for wire in self._busy:
                wire.abort()
            for wire in self._idle:
                wire.close()
            self._idle.clear()

    def _stream_of(self, claim: Claim) -> str | None:
        stream = self._entries.stream(claim)
        return stream if isinstance(stream, str) else None

    def _deliver(self, batch: Sequence[Claim], patience: float | None) -> Sequence[Outcome]:
        waited = self._timeout if patience is None else min(self._timeout, patience)
        until = time.monotonic() + waited
        outcomes: list[Outcome | None] = [None] * len(batch)
        largest = self._settings.max_message_bytes
        rounds = rounds_of(batch, self._entries, largest, self._in_order, outcomes)
        if rounds:
            wire = self._take(until)
            if isinstance(wire, Wire):
                self._last_stream = rounds[0][0].stream
                usable = False
                try:
                    usable = self._run(wire, rounds, outcomes, until, waited)
                finally:
                    self._give_back(wire, usable)
            else:
                outcomes = [wire if outcome is None else outcome for outcome in outcomes]
        settled: list[Outcome] = outcomes  # type: ignore[assignment]  # none is None any more
        if all_acked(settled):
            return settled
        return KeyOrder(self._in_order).settle(batch, settled)

    def _run(
        self,
        wire: Wire,
        rounds: Sequence[Sequence[Transaction]],
        outcomes: list[Outcome | None],
        until: float,
        waited: float,
    ) -> bool:
        """Whether the connection may be used again."""
        failed: set[str] = set()
        stop: Outcome | None = None
        for together in rounds:
            if stop is None and time.monotonic() >= until:
                stop = NO_TIME_LEFT
            sent = [t for t in together if stop is None and t.stream not in failed]
            for transaction in together:
                if transaction not in sent:
                    _fill(outcomes, transaction, stop or STREAM_FAILED)
            if not sent:
                continue
            try:
                found = self._send(wire, sent, until)
            except Broken as broken:
                limit = format_duration(timedelta(seconds=waited))
                text = f"{broken}; not acknowledged within {limit}, so it is in doubt"
                if broken.code != "NO_ANSWER":
                    text = f"{broken} before it acknowledged this, so it is in doubt"
                in_doubt = Refused(Error.of(ErrorClass.OUTAGE, broken.code, text))
                for transaction in sent:
                    _fill(outcomes, transaction, in_doubt)
                if isinstance(broken, TooLong):
                    _fill(outcomes, broken.transaction, TOO_LONG)
                stop = CALL_FAILED
                continue
            for transaction, answers in zip(sent, found, strict=True):
                for place, answer in zip(transaction.places, answers, strict=True):
                    outcomes[place] = answer
                    if not isinstance(answer, Acked):
                        failed.add(transaction.stream)
        # After any outage, a new connection: perhaps to another server of that name, and certainly
        # with the current secrets.
        return stop is None and not any(
            isinstance(o, Refused) and o.error.kind is ErrorClass.OUTAGE for o in outcomes
        )

    def _send(
        self, wire: Wire, transactions: Sequence[Transaction], until: float
    ) -> list[list[Outcome]]:
        if missing := self._copies.missing(wire, until):
            return [[missing] * len(t.places) for t in transactions]
        try:
            for transaction in transactions:
                wire.send(transaction.message(), until)
            waiting = self._copies.command(until)
            wire.send(waiting, until)
        except Broken:
            for transaction in transactions:  # the server may have sent the reason
                transaction.outcomes(lambda: wire.read(until))
            raise
        found = [transaction.outcomes(lambda: wire.read(until)) for transaction in transactions]
        if waiting and (short := self._copies.shortfall(wire.read(until))):
            return [[short if isinstance(o, Acked) else o for o in found_] for found_ in found]
        return found

    def _take(self, until: float) -> Wire | Refused | Unsent:
        with self._changed:
            if self._closed:
                return PUBLISHER_CLOSED
            while self._idle:
                wire = self._idle.pop()  # the last one used: the freshest
                if wire.is_alive():
                    self._busy.add(wire)
                    return wire
                wire.close()
        try:
            wire = Wire(self._settings, until)
        except Broken as broken:
            return Refused(Error.of(ErrorClass.OUTAGE, broken.code, str(broken)))
        except ReplyError as error:
            # Whatever the answer to a login is, it is not an event's fault.
            why = error_of(error)._replace(kind=ErrorClass.OUTAGE)
            return Refused(why)
        except OutboxError as error:
            return Refused(Error.of(ErrorClass.OUTAGE, "NO_CLIENT", str(error)))
        return self._lend(wire)

    def _lend(self, wire: Wire) -> Wire | Unsent:
        """Register one that was just made, unless the publisher was closed meanwhile."""
        with self._changed:
            if self._closed:
                wire.close()
                return PUBLISHER_CLOSED
            self._busy.add(wire)
            return wire

    def _give_back(self, wire: Wire, usable: bool) -> None:
        with self._changed:
            self._busy.discard(wire)
            if usable and not self._closed:
                self._idle.append(wire)
            else:
                wire.close()
            self._changed.notify_all()


def _fill(outcomes: list[Outcome | None], transaction: Transaction, outcome: Outcome) -> None:
    for place in transaction.places:
        outcomes[place] = outcome

"""
RabbitMQ: acknowledged when the server has confirmed a message and has not returned it.

All messages are persistent and mandatory. A confirm means that every queue to which the message was
routed has it, on disk if the queue is durable; a message without a queue comes back first, and is
confirmed then. A batch is sent as a whole, and its confirms are collected afterwards.
"""

import time
from collections.abc import Hashable, Iterator, Sequence
from datetime import timedelta

from outbox_core.contract.publishers.rabbitmq import RabbitMQSettings
from outbox_core.errors import OutboxError, PublisherError
from outbox_core.model.attempt import Acked, Error, ErrorClass, Outcome, Refused, Unsent
from outbox_core.model.event import Claim
from outbox_relay.publishers.destinations import Destinations
from outbox_relay.publishers.messages import CACHED_NAMES
from outbox_relay.publishers.parking import Parked
from outbox_relay.publishers.protocol import CheckResult, Sample
from outbox_relay.publishers.rabbitmq.check import check_rabbitmq
from outbox_relay.publishers.rabbitmq.connection import Connection, Flight
from outbox_relay.publishers.rabbitmq.errors import (
    NACKED,
    NOT_STARTED,
    Sent,
    largest_taken,
    settle,
    unroutable,
)
from outbox_relay.publishers.rabbitmq.messages import Encoder, routing_key_template
from outbox_relay.publishers.rabbitmq.pool import Pool

PROBE_SECONDS = 5.0
PUBLISHER_CLOSED = Unsent("the publisher is closed")


class RabbitMQPublisher:
    def __init__(self, settings: RabbitMQSettings) -> None:
        self._settings = settings
        self._timeout = settings.delivery_timeout.total_seconds()
        self._encoder = Encoder(settings)
        self._pool = Pool(settings)
        self._acked: dict[str, Acked] = {}
        self._keys = Destinations(self._name_of, self._deliver, self._timeout, time.monotonic)

    def publish(self, batch: Sequence[Claim]) -> Sequence[Outcome]:
        return self._keys.publish(batch)

    def route(self, claim: Claim) -> Hashable | None:
        return None  # one may be returned or refused while the next is taken

    def blame(self, batch: Sequence[Claim], outcomes: Sequence[Outcome]) -> Sequence[Outcome]:
        return self._keys.blame(batch, outcomes)

    def parked(self) -> Sequence[Parked]:
        return self._keys.parked()

    def probe(self) -> None:
        if why := self._pool.why_blocked():
            raise PublisherError(f"RabbitMQ at {why}")
        self._pool.connect(time.monotonic() + PROBE_SECONDS).close()

    def check(self, samples: Sequence[Sample]) -> Sequence[CheckResult]:
        keys = routing_key_template(self._settings).names(samples)
        return check_rabbitmq(self._settings, self.probe, keys)

    def close(self, timeout: timedelta) -> None:
        self._pool.close(timeout.total_seconds())

    def _name_of(self, claim: Claim) -> str | None:
        key = self._encoder.routing_key(claim)
        return key if isinstance(key, str) else None

    def _deliver(self, batch: Sequence[Claim], patience: float | None) -> Sequence[Outcome]:
        if not batch:
            return []
        if self._pool.closed:
            return [PUBLISHER_CLOSED] * len(batch)
        until = time.monotonic() + min(self._timeout, patience or self._timeout)
        if why := self._pool.why_blocked():
            return [Refused(Error.of(ErrorClass.OUTAGE, "BLOCKED", why))] * len(batch)
        try:
            connection = self._pool.take(until)
        except OutboxError as error:
            return [Refused(Error.of(ErrorClass.OUTAGE, "NO_CONNECTION", str(error)))] * len(batch)
        if connection is None:
            return [PUBLISHER_CLOSED] * len(batch)
        try:
            return self._send(connection, batch)
        finally:
            self._pool.give_back(connection)

    def _send(self, connection: Connection, batch: Sequence[Claim]) -> Sequence[Outcome]:
        outcomes: list[Outcome] = [NOT_STARTED] * len(batch)
        indexes: list[int] = []
        encode, largest_frame = self._encoder.encode, connection.largest_frame

        def messages() -> Iterator[tuple[str, bytes]]:
            for index, claim in enumerate(batch):
                message = encode(claim, largest_frame)
                if isinstance(message, bytes):
                    indexes.append(index)
                    yield claim.event_id, message
                else:
                    outcomes[index] = message

        flight, lost = connection.publish(messages())
        waiting: list[int] = []
        for place, index in enumerate(indexes):
            answer = flight.answers[place]
            if answer == Flight.ACKED and place not in flight.returned:
                outcomes[index] = self._acked_by(batch[index])
            elif place in flight.returned:
                why, key = flight.returned[place], str(self._name_of(batch[index]))
                outcomes[index] = unroutable(why, self._settings.exchange, key)
            elif answer == Flight.NACKED:
                outcomes[index] = NACKED
            elif place < flight.started:
                waiting.append(index)
        if lost is not None:
            self._encoder.largest = min(self._encoder.largest, largest_taken(lost) or 1 << 62)
            sent = [Sent(str(self._name_of(batch[i])), len(batch[i].payload)) for i in waiting]
            for index, outcome in zip(waiting, settle(lost, sent), strict=True):
                outcomes[index] = outcome
        return outcomes

    def _acked_by(self, claim: Claim) -> Acked:
        """The same for all of a key: RabbitMQ gives messages no number."""
        key = str(self._encoder.routing_key(claim))
        acked = self._acked.get(key)
        if acked is None:
            if len(self._acked) >= CACHED_NAMES:
                self._acked.clear()
            acked = self._acked[key] = Acked(f"{self._settings.exchange}/{key}")
        return acked

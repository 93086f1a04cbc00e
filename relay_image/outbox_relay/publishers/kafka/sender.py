"""
One producer, used for one call at a time: messages in, reports out.

`publisher.KafkaPublisher` lends it out, decides what is sent together and what the reports mean.
Here is what librdkafka demands: room in its queue, the moment of giving up, and the states after
which a producer is not to be used again.
"""

import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from typing import NamedTuple

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from outbox_core.model.attempt import Acked, Error, ErrorClass, Outcome, Refused
from outbox_core.model.event import Claim
from outbox_core.model.ordering import BEHIND, KeyOrder
from outbox_relay.publishers.kafka.config import Config, Credentials, Trouble, make_client
from outbox_relay.publishers.kafka.errors import IN_DOUBT, error_of
from outbox_relay.publishers.kafka.messages import Messages, Route

log = logging.getLogger(__name__)

LONGEST_POLL_SECONDS = 0.1
"""Between two checks whether the producer has failed or we are to stop."""
SETTLE_SECONDS = 2.0
"""After a fatal error, what is already on its way may still be acknowledged for this long."""
CONNECT_SECONDS = 1.0
"""A message handed over before the first connection waits half a second for a producer id; one
that comes after it, a twentieth."""
PROVEN_FOR_SECONDS = 3600.0
"""Brokers forget a producer's sequence in a partition after a day without messages."""
MOST_PROVEN_ROUTES = 20_000

STORED_NOWHERE = Refused(
    Error.of(ErrorClass.OUTAGE, "NO_OFFSET", "Kafka took it for a duplicate and stored it nowhere")
)
"""
A success without an offset is not a success. A broker that does not know the producer yet, as in a
new topic, may turn down its first request for a moment and accept the second, which is on its way
already. The first, sent again, is then older than what is there: "duplicate", which librdkafka
reports as success, and the event is lost (seen with Kafka 4.3 and librdkafka 2.16).
"""

Callback = Callable[[KafkaError | None, Message], None]

acked: Callable[[tuple[str]], Acked] = partial(tuple.__new__, Acked)
"""Makes an Acked without calling its constructor, which takes twice as long."""


class Accused(NamedTuple):
    """An event that the broker refused, together with whatever was in the same record batch."""

    at: int
    code: int
    place: tuple[str | None, int | None]


class Sender:
    def __init__(
        self,
        config: Config,
        secrets: Credentials,
        messages: Messages,
        in_order: bool,
        many: bool = False,
    ) -> None:
        self.many = many
        self._trouble = Trouble(log, secrets)
        self._producer = make_client(Producer, config, secrets, self._trouble)
        self._messages = messages
        self._in_order = in_order
        self._connected = False
        self._reports: list[Outcome | None] = []
        # One callback per place in a batch, made once: a new one for each message costs a tenth
        # of the whole.
        self._callbacks: list[Callback] = []
        self._proven: set[Route] = set()
        self._proven_since = time.monotonic()
        self.accused: list[Accused] = []
        self.fatal: KafkaError | None = None
        self.broken = False
        """Not to be used again: what it may still hold must not mix with another call's."""
        self.stop_at = float("inf")

    def send(
        self, claims: Sequence[Claim], routes: Sequence[Route], until: float
    ) -> list[Outcome | None]:
        """
        Hand all over by their routes, wait for the reports. None: no report, so it is in doubt.

        In order, no event is handed over after one of its key that could not be.
        """
        self._make_room_for(len(claims))
        self._trouble.last = None
        self._connect(until)
        reports = self._reports
        headers_of = self._messages.headers
        produce = self._producer.produce
        order = KeyOrder(self._in_order)
        failed_keys = order.failed_keys
        handed = zip(count(), claims, routes, self._callbacks, strict=False)
        for index, claim, (topic, key), callback in handed:
            if failed_keys and order.blocks(claim):
                reports[index] = BEHIND
                continue
            try:
                if topic.__class__ is not str:
                    reports[index] = topic  # type: ignore[assignment]
                else:
                    # By position, because names cost half a microsecond: any partition, the
                    # callback, its other name, and 0 for the time: now.
                    produce(topic, claim.payload, key, -1, callback, None, 0, headers_of(claim))
                    continue
            except BufferError:
                if self._produce_when_there_is_room(topic, claim, key, callback, until):
                    continue
                break
            except KafkaException as error:
                reason = error.args[0]
                if reason.fatal() or reason.code() == KafkaError._FATAL:
                    self.fatal = reason
                    break
                reports[index] = Refused(error_of(reason))
            except (TypeError, ValueError) as error:
                reports[index] = Refused(
                    Error.of(ErrorClass.EVENT, "INVALID_RECORD", f"not a Kafka record: {error}")
                )
            order.fail(claim)
        self._collect(until)
        return reports[: len(claims)]

    @property
    def proven(self) -> set[Route]:
        """
        Routes where this producer has been acknowledged, not too long ago.

        Only there does the broker know its sequence, and refuse what follows a gap. From a
        producer it does not know it takes any sequence: when the first batch is refused, those
        already on their way behind it are accepted, gapless guarantee or not.
        """
        now = time.monotonic()
        if now - self._proven_since > PROVEN_FOR_SECONDS or len(self._proven) > MOST_PROVEN_ROUTES:
            self._proven.clear()
            self._proven_since = now
        return self._proven

    def prove(self, routes: Sequence[Route]) -> None:
        self.proven.update(routes)

    def because(self) -> str:
        return self._trouble.because()

    def idle(self) -> None:
        """Take the client's own reports while nothing is published, or they would pile up."""
        self._poll(0)

    def discard(self) -> None:
        """What it still holds must not be sent any more."""
        self.broken = True
        self._producer.purge()
        self._poll(0)

    def _make_room_for(self, count: int) -> None:
        self._reports[:] = [None] * max(count, len(self._reports))
        self.accused = []
        for index in range(len(self._callbacks), count):
            self._callbacks.append(self._callback_for(index))

    def _callback_for(self, index: int) -> Callback:
        reports = self._reports  # always the same list

        def report(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                self._note_failure(index, error, message)
                return
            offset = message.offset()
            if offset is None or offset < 0:
                reports[index] = STORED_NOWHERE
            else:
                reports[index] = acked((f"{message.topic()}[{message.partition()}]@{offset}",))

        return report

    def _note_failure(self, index: int, error: KafkaError, message: Message) -> None:
        if error.code() not in IN_DOUBT:
            why = error_of(error, self._trouble.because())
            if why.kind is ErrorClass.EVENT:
                place_of = (message.topic(), message.partition())
                self.accused.append(Accused(index, error.code(), place_of))
            self._reports[index] = Refused(why)

    def _connect(self, until: float) -> None:
        if self._connected:
            return
        try:
            self._producer.cluster_id(max(0.0, min(CONNECT_SECONDS, until - time.monotonic())))
        except KafkaException as error:
            log.debug("not connected yet: %s", error)
        else:
            self._connected = True

    def _produce_when_there_is_room(
        self,
        topic: str | Refused,
        claim: Claim,
        key: str | None,
        callback: Callable[[KafkaError | None, Message], None],
        until: float,
    ) -> bool:
        assert isinstance(topic, str)
        headers = self._messages.headers(claim)
        while self._may_wait(until):
            self._poll(0.01)
            try:
                self._producer.produce(topic, claim.payload, key, -1, callback, None, 0, headers)
            except BufferError:
                continue
            except KafkaException as error:
                self.fatal = error.args[0]  # the message itself was fine: it only found no room
                return False
            return True
        return False

    def _may_wait(self, until: float) -> bool:
        return self.fatal is None and time.monotonic() < min(until, self.stop_at)

    def _collect(self, until: float) -> None:
        producer = self._producer
        while len(producer) and self._may_wait(until):
            self._poll(min(LONGEST_POLL_SECONDS, max(0.0, until - time.monotonic())))
        if self.fatal is not None:
            settled = min(until, time.monotonic() + SETTLE_SECONDS)
            while len(producer) and time.monotonic() < settled:
                # Again and again: what the broker refuses behind the gap goes back to the queue.
                producer.purge(in_flight=False)
                self._poll(0.02)
        if len(producer) or self.fatal is not None:
            self.broken = True
            producer.purge()
            given_up = time.monotonic() + 1.0
            while len(producer) and time.monotonic() < given_up:
                self._poll(0.05)
        # A new password is read only by a new producer.
        last = self._trouble.last
        self.broken |= last is not None and last.code() in (
            KafkaError._AUTHENTICATION,
            KafkaError.SASL_AUTHENTICATION_FAILED,
        )

    def _poll(self, timeout: float) -> None:
        # Not flush(): it goes on calling back after a fatal error, with an exception pending.
        try:
            self._producer.poll(timeout)
        except KafkaException as error:
            self.fatal = error.args[0]

"""
Kafka: acknowledged by all in-sync replicas, by an idempotent producer. One call is one attempt.

What the client resends within `delivery_timeout` belongs to that attempt; so does asking again
about single events when the broker refused a record batch of several (see `_ask_alone`).

In order, each event of a key reaches the broker only if all before it did. Two things together
ensure that within a call: the producer's gapless mode, and that a key of which this producer has
nothing acknowledged yet sends its first event ahead (see `Sender.proven`).
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Hashable, Sequence
from datetime import timedelta

from confluent_kafka import KafkaError

from outbox_core.contract.publishers.kafka import KafkaSettings
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
from outbox_core.model.ordering import BEHIND, KeyOrder
from outbox_relay.publishers.destinations import Destinations
from outbox_relay.publishers.kafka.check import ask_cluster, check_kafka
from outbox_relay.publishers.kafka.config import (
    LARGEST_BATCH_BYTES,
    client_config,
    producer_config,
)
from outbox_relay.publishers.kafka.messages import Route, messages_for, topic_template
from outbox_relay.publishers.kafka.sender import Accused, Sender
from outbox_relay.publishers.parking import Parked
from outbox_relay.publishers.protocol import CheckResult, Sample

log = logging.getLogger(__name__)

SMALLEST_BATCH_BYTES = 256
MANY_EVENTS = 50
"""In one call: from here on they are gathered into large requests."""
LINGER_FOR_MANY_MS = 20
"""Without it the first messages of a batch leave while the others are still being handed over:
measured, a request for every few messages, and four times the CPU in relay and broker."""
PUBLISHER_CLOSED = Unsent("the publisher is closed")
NOT_ASKED = Unsent("refused in one batch with others, and not tried alone")
ANOTHER_WAS_REFUSED = Unsent("the broker refused another event, and the producer was replaced")


class KafkaPublisher:
    def __init__(self, settings: KafkaSettings, in_order: bool) -> None:
        self._settings = settings
        self._in_order = in_order
        self._timeout = settings.delivery_timeout.total_seconds()
        self._messages = messages_for(settings)
        self._topics = Destinations(self._topic_of, self._deliver, self._timeout, time.monotonic)
        self._batch_bytes = min(LARGEST_BATCH_BYTES, settings.max_message_bytes)
        # A producer belongs to one call at a time, so calls neither wait for each other nor lose
        # their messages when another's producer fails.
        self._changed = threading.Condition()
        # Two kinds: for a few events, sent at once, and for many, gathered into large requests. One
        # is made now, to fail early on a wrong setting.
        self._idle = [self._make_sender(many=False)]
        self._busy: set[Sender] = set()
        self._closed = False

    def publish(self, batch: Sequence[Claim]) -> Sequence[Outcome]:
        return self._topics.publish(batch)

    def blame(self, batch: Sequence[Claim], outcomes: Sequence[Outcome]) -> Sequence[Outcome]:
        return self._topics.blame(batch, outcomes)

    def parked(self) -> Sequence[Parked]:
        return self._topics.parked()

    def _topic_of(self, claim: Claim) -> str | None:
        topic = self._messages.topic(claim)
        return topic if isinstance(topic, str) else None

    def _deliver(self, batch: Sequence[Claim], patience: float | None) -> Sequence[Outcome]:
        waited = self._timeout if patience is None else min(self._timeout, patience)
        until = time.monotonic() + waited
        try:
            sender = self._take(many=len(batch) >= MANY_EVENTS)
        except OutboxError as error:
            return [Refused(Error.of(ErrorClass.OUTAGE, "NO_CLIENT", str(error)))] * len(batch)
        if sender is None:
            return [PUBLISHER_CLOSED] * len(batch)
        try:
            if self._in_order:
                outcomes, accused = self._send_in_order(sender, batch, until)
            else:
                outcomes = sender.send(batch, self._messages.routes(batch), until)
                accused = sender.accused
        finally:
            self._give_back(sender)
        if accused:
            self._ask_alone(batch, outcomes, accused, until)
        return self._settle(sender, batch, outcomes, waited)

    def route(self, claim: Claim) -> Hashable | None:
        if not self._in_order:
            return None
        topic, key = self._messages.topic(claim), self._messages.key(claim)
        return None if key is None or topic.__class__ is not str else (topic, key)

    def probe(self) -> None:
        with self._changed:
            idle = list(self._idle)
            self._idle.clear()
            self._busy.update(idle)
        for sender in idle:
            sender.idle()
            self._give_back(sender)
        ask_cluster(self._settings)

    def check(self, samples: Sequence[Sample]) -> Sequence[CheckResult]:
        return check_kafka(self._settings, topic_template(self._settings).names(samples))

    def close(self, timeout: timedelta) -> None:
        deadline = time.monotonic() + timeout.total_seconds()
        with self._changed:
            self._closed = True
            for sender in self._busy:
                sender.stop_at = deadline
            # A little longer: a call that stops at the deadline still purges what is left.
            self._changed.wait_for(lambda: not self._busy, timeout.total_seconds() + 2)
            for sender in self._idle:
                sender.discard()
            self._idle.clear()

    def _send_in_order(
        self, sender: Sender, batch: Sequence[Claim], until: float
    ) -> tuple[list[Outcome | None], list[Accused]]:
        """First all of the proven keys and the heads of the others; then what is behind these."""
        routes, proven = self._messages.routes(batch), sender.proven
        if proven.issuperset(routes):  # as a rule
            return sender.send(batch, routes, until), sender.accused
        heads: dict[str | None, tuple[int, Route]] = {}
        behind: list[int] = []
        for index, (claim, route) in enumerate(zip(batch, routes, strict=True)):
            key = claim.ordering_key
            if key in heads:
                behind.append(index)
            elif key is not None and route not in proven:
                heads[key] = (index, route)
        if not heads:
            return sender.send(batch, routes, until), sender.accused
        outcomes: list[Outcome | None] = [None] * len(batch)
        accused: list[Accused] = []

        def send(indexes: list[int]) -> None:
            part, ways = [batch[i] for i in indexes], [routes[i] for i in indexes]
            reports = sender.send(part, ways, until)
            for index, report in zip(indexes, reports, strict=True):
                outcomes[index] = report
            accused.extend(a._replace(at=indexes[a.at]) for a in sender.accused)

        later = set(behind)
        send([index for index in range(len(batch)) if index not in later])
        order = KeyOrder()
        order.saw([batch[i] for i, _ in heads.values()], [outcomes[i] for i, _ in heads.values()])
        sender.prove([route for i, route in heads.values() if not order.blocks(batch[i])])
        for index in behind:
            outcomes[index] = BEHIND
        rest = [i for i in behind if not order.blocks(batch[i])]
        if rest and not sender.broken:
            send(rest)
        return outcomes, accused

    def _ask_alone(
        self,
        batch: Sequence[Claim],
        outcomes: list[Outcome | None],
        accused: Sequence[Accused],
        until: float,
    ) -> None:
        """
        Kafka refuses record batches, not records: one record that is too large, or all of them
        together, and every event of the batch gets the error. So before an event is given up for
        that, it is sent once more, in a batch of its own.
        """
        crowds = Counter(a.place for a in accused)
        doubtful = {a.at: a.code for a in accused if crowds[a.place] > 1}
        # In order, not if something else of its key before it failed: it has to wait for that.
        before = KeyOrder(self._in_order)
        again: list[int] = []
        for index, claim in enumerate(batch):
            if index in doubtful and not before.blocks(claim):
                again.append(index)
            elif not isinstance(outcomes[index], Acked):
                before.fail(claim)
        if not again:
            return
        index_of = {batch[i].seq: i for i in again}
        try:
            sender = self._take(many=False, alone=True)
        except OutboxError as error:
            log.warning("cannot ask about %d refused events one by one: %s", len(again), error)
            sender = None
        if sender is None:
            for index in again:
                outcomes[index] = NOT_ASKED
            return
        for index in again:
            outcomes[index] = BEHIND
        order = KeyOrder(self._in_order)
        for wave in order.waves([batch[i] for i in again], lambda _: None):
            reports: Sequence[Outcome | None] = [None] * len(wave)
            if not sender.broken:
                reports = sender.send(wave, self._messages.routes(wave), until)
            order.saw(wave, reports)
            for claim, report in zip(wave, reports, strict=True):
                outcomes[index_of[claim.seq]] = report
        sender.discard()
        self._give_back(sender)
        if any(
            isinstance(outcomes[i], Acked) and doubtful[i] == KafkaError.MSG_SIZE_TOO_LARGE
            for i in again
        ):
            self._make_batches_smaller()

    def _make_batches_smaller(self) -> None:
        """Events that fit were refused in a crowd: a topic takes less at once than we may send."""
        with self._changed:
            self._batch_bytes = max(SMALLEST_BATCH_BYTES, self._batch_bytes // 2)
            self._idle.clear()
            for sender in self._busy:
                sender.broken = True  # finishes its call, and is not used again
        log.warning(
            "a topic's max.message.bytes is below maxMessageBytes (%d): sending batches of at "
            "most %d bytes; lower maxMessageBytes to the smallest limit of the relay's topics",
            self._settings.max_message_bytes,
            self._batch_bytes,
        )

    def _settle(
        self,
        sender: Sender,
        batch: Sequence[Claim],
        outcomes: list[Outcome | None],
        waited: float,
    ) -> Sequence[Outcome]:
        """Give events in doubt an outcome; in order, let only the first of a key fail."""
        if all_acked(outcomes):
            return outcomes  # type: ignore[return-value]
        if None in outcomes:
            in_doubt = self._about_those_in_doubt(sender, outcomes, waited)
            outcomes = [in_doubt if outcome is None else outcome for outcome in outcomes]
        settled: list[Outcome] = outcomes  # type: ignore[assignment]
        return KeyOrder(self._in_order).settle(batch, settled)

    def _about_those_in_doubt(
        self, sender: Sender, outcomes: Sequence[Outcome | None], waited: float
    ) -> Outcome:
        if sender.fatal is None:
            limit = format_duration(timedelta(seconds=waited))
            text = f"no acknowledgement within {limit}{sender.because()}"
            return Refused(Error.of(ErrorClass.OUTAGE, "NO_REPORT", text))
        for outcome in outcomes:
            if isinstance(outcome, Refused) and outcome.error.kind is not ErrorClass.OUTAGE:
                return ANOTHER_WAS_REFUSED  # the broker is well, and they cost no attempt
        return Refused(Error.of(ErrorClass.OUTAGE, sender.fatal.name(), sender.fatal.str()))

    def _make_sender(self, many: bool, alone: bool = False) -> Sender:
        config, secrets = client_config(self._settings)
        # Alone, an event needs no gapless mode: its key waits for the answer.
        in_order = self._in_order and not alone
        config |= producer_config(self._settings, in_order, self._batch_bytes)
        if alone:
            config["batch.num.messages"] = 1
        if many:
            config["linger.ms"] = max(config["linger.ms"], LINGER_FOR_MANY_MS)
        return Sender(config, secrets, self._messages, self._in_order, many)

    def _take(self, many: bool, alone: bool = False) -> Sender | None:
        with self._changed:
            if self._closed:
                return None
            # From the end, the last one used: its connections are the freshest.
            fit = [s for s in reversed(self._idle) if s.many == many and not alone]
            if fit:
                sender = fit[0]
                self._idle.remove(sender)
            else:
                sender = self._make_sender(many, alone)
            self._busy.add(sender)
            return sender

    def _give_back(self, sender: Sender) -> None:
        with self._changed:
            self._busy.discard(sender)
            if not sender.broken:
                self._idle.append(sender)
            self._changed.notify_all()

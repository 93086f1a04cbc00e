"""
SQS: acknowledged by a message id, in requests of up to 10 events, each of which succeeds or fails
alone.

A queue is a destination: one that is gone, or that we may not write to, is parked while others go
on. Nothing here keeps the order of a key: `route` promises nothing, so the relay sends one event of
each key at a time, and a FIFO queue keeps the order in which they arrive.
"""

import time
from collections.abc import Hashable, Iterator, Sequence
from datetime import timedelta
from typing import Any

from outbox_core.contract.publishers.sqs import SqsSettings
from outbox_core.model.attempt import Acked, Error, ErrorClass, Outcome, Refused, Unsent
from outbox_core.model.event import Claim
from outbox_relay.publishers.destinations import Destinations
from outbox_relay.publishers.parking import Parked
from outbox_relay.publishers.protocol import CheckResult, Sample
from outbox_relay.publishers.sqs.check import check_sqs, probe_sqs
from outbox_relay.publishers.sqs.connection import Connections
from outbox_relay.publishers.sqs.credentials import Signer
from outbox_relay.publishers.sqs.endpoint import endpoint_of, region_of
from outbox_relay.publishers.sqs.errors import refused_entry
from outbox_relay.publishers.sqs.messages import Entry, Messages

MOST_ENTRIES = 10
"""In one request, at most."""
NOT_SENT = Unsent("not sent: there was no time, or the publisher is closed")
NO_REPORT = Refused(
    Error.of(ErrorClass.OUTAGE, "NO_REPORT", "the answer does not mention this event")
)

Part = list[tuple[int, Entry]]
"""What goes into one request, all of one queue: entries, and where they stand in the batch."""


class SqsPublisher:
    def __init__(self, settings: SqsSettings) -> None:
        self._settings = settings
        self._timeout = settings.delivery_timeout.total_seconds()
        self._messages = Messages(settings)
        signer = Signer(settings, region_of(settings))
        self._connections = Connections(settings, endpoint_of(settings), signer)
        self._queues = Destinations(
            self._messages.queue, self._deliver, self._timeout, time.monotonic
        )

    def publish(self, batch: Sequence[Claim]) -> Sequence[Outcome]:
        return self._queues.publish(batch)

    def blame(self, batch: Sequence[Claim], outcomes: Sequence[Outcome]) -> Sequence[Outcome]:
        return self._queues.blame(batch, outcomes)

    def parked(self) -> Sequence[Parked]:
        return self._queues.parked()

    def route(self, claim: Claim) -> Hashable | None:
        return None  # of several entries of a request, one in the middle may fail

    def probe(self) -> None:
        probe_sqs(self._settings, self._connections)

    def check(self, samples: Sequence[Sample]) -> Sequence[CheckResult]:
        queues = self._messages.queue_of.names(samples)
        return check_sqs(self._settings, self._connections, queues)

    def close(self, timeout: timedelta) -> None:
        self._connections.close(timeout.total_seconds())

    def _deliver(self, batch: Sequence[Claim], patience: float | None) -> Sequence[Outcome]:
        waited = self._timeout if patience is None else min(self._timeout, patience)
        until = time.monotonic() + waited
        outcomes: list[Outcome] = [NOT_SENT] * len(batch)
        made: dict[str, Part] = {}
        for index, claim in enumerate(batch):
            entry = self._messages.make(claim)
            if isinstance(entry, Entry):
                made.setdefault(entry.queue, []).append((index, entry))
            else:
                outcomes[index] = entry
        parts = [
            part for entries in made.values() for part in _parts(entries, self._largest_request)
        ]
        again = self._send(parts, outcomes, until)
        if again:
            self._send([[one] for one in again], outcomes, until)
        return outcomes

    @property
    def _largest_request(self) -> int:
        return self._settings.max_message_bytes

    def _send(self, parts: Sequence[Part], outcomes: list[Outcome], until: float) -> Part:
        """Returns the events of requests that were refused as a whole, perhaps because of one
        event: nothing of such a request was stored, and its events are to be sent again one by
        one."""
        answers = self._connections.ask_all(
            "SendMessageBatch", [_request(part) for part in parts], until
        )
        again: Part = []
        for part, answer in zip(parts, answers, strict=True):
            if isinstance(answer, dict):
                _read(part, answer, outcomes)
            elif answer is not None and answer.blames_the_content and len(part) > 1:
                again += part
            elif answer is not None:
                refused = answer.refused()
                for index, _ in part:
                    outcomes[index] = refused
        return again


def _parts(entries: Part, largest: int) -> Iterator[Part]:
    part: Part = []
    size = 0
    for one in entries:
        if part and (len(part) == MOST_ENTRIES or size + one[1].size > largest):
            yield part
            part, size = [], 0
        part.append(one)
        size += one[1].size
    yield part


def _request(part: Part) -> dict[str, Any]:
    return {
        "QueueUrl": part[0][1].queue,
        "Entries": [{"Id": str(n), **entry.fields} for n, (_, entry) in enumerate(part)],
    }


def _read(part: Part, answer: dict[str, Any], outcomes: list[Outcome]) -> None:
    place = {str(n): index for n, (index, _) in enumerate(part)}
    for index in place.values():
        outcomes[index] = NO_REPORT
    queue = part[0][1].queue.rpartition("/")[2]
    for found in _listed(answer, "Successful"):
        done, message = place.get(str(found.get("Id"))), _name(found.get("MessageId"))
        if done is not None and message:
            number = _name(found.get("SequenceNumber"))
            outcomes[done] = Acked(
                f"{queue}/{message}@{number}" if number else f"{queue}/{message}"
            )
    # Last: what is in both lists is not acknowledged.
    for found in _listed(answer, "Failed"):
        if (failed := place.get(str(found.get("Id")))) is not None:
            outcomes[failed] = refused_entry(found)


def _name(found: object) -> str | None:
    """None unless it is printable: JSON can contain text that PostgreSQL cannot store."""
    return found if isinstance(found, str) and found.isprintable() else None


def _listed(answer: dict[str, Any], name: str) -> list[dict[str, Any]]:
    found = answer.get(name)
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []

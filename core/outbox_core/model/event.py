"""
The event as a relay sees it: what was stored, and the claim on it.

A named tuple, because a relay makes tens of thousands of them per second directly from rows: the
fields are the columns of `outbox.claimed`, in their order.
"""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from operator import itemgetter
from typing import Any, Final, NamedTuple

Header = tuple[str, str | None]
Moment = int
"""Microseconds since EPOCH, which is how PostgreSQL keeps a time: to make a datetime of each takes
longer than to read the rest of the row."""
EPOCH: Final = datetime(2000, 1, 1, tzinfo=UTC)


def datetime_of(moment: Moment) -> datetime:
    return EPOCH + timedelta(microseconds=moment)


class Claim(NamedTuple):
    """One event that this relay has claimed, for one attempt to publish it."""

    seq: int
    token: int
    """The fencing token: we may change the delivery only while it still has this token."""
    claimed_at: Moment
    """By the database's clock, like every time here."""
    attempts: int
    """Claims so far, including this one; never decreases."""
    attempts_base: int
    crashes: int
    """How many leases of this event expired in a row before this claim."""
    lane: int
    event_id: str
    event_type: str
    payload: bytes
    content_type: str | None
    headers_json: str | None
    traceparent_in_metadata: str | None
    partition_key: str | None
    ordering_key: str | None
    tenant_id: str | None
    correlation_id: str | None
    causation_id: str | None
    idempotency_key: str | None
    aggregate_type: str | None
    aggregate_id: str | None
    occurred_at: Moment | None
    created_at: Moment
    max_attempts: int | None
    line_from: int | None = None
    """The smallest seq that was in line; the same for the whole batch."""
    age_from: Moment | None = None
    """Where its age counts from, if a person replayed or rescheduled it."""
    was_published: bool = False
    """Before a person replayed it. So it has arrived once, which is no reason not to send it."""

    @property
    def spent(self) -> int:
        """Attempts that count against the budget, including this one."""
        return self.attempts - self.attempts_base

    @property
    def age(self) -> timedelta:
        since = self.created_at if self.age_from is None else self.age_from
        return timedelta(microseconds=self.claimed_at - since)

    @property
    def happened_at(self) -> Moment:
        return self.created_at if self.occurred_at is None else self.occurred_at

    @property
    def headers(self) -> list[Header]:
        """The application's headers, in order; a name may occur more than once."""
        if self.headers_json is None:
            return []
        stored = json.loads(self.headers_json)
        if isinstance(stored, dict):
            return list(stored.items())
        return [(name, value) for name, value in stored]

    @property
    def traceparent(self) -> str | None:
        """The W3C trace context of the span that emitted the event: the application's header,
        otherwise the one in the metadata."""
        if self.headers_json is not None and "traceparent" in self.headers_json.lower():
            for name, value in self.headers:
                if name.lower() == "traceparent":
                    return value
        return self.traceparent_in_metadata

    @property
    def routing_key(self) -> str | None:
        """What the broker partitions by: partition_key, otherwise ordering_key."""
        return self.ordering_key if self.partition_key is None else self.partition_key


message_fields: Callable[[Claim], tuple[Any, ...]] = itemgetter(
    slice(Claim._fields.index("event_id"), Claim._fields.index("created_at") + 1)
)
"""What a message is made of, event_id to created_at, to be unpacked: reading so many fields by name
takes five times as long."""

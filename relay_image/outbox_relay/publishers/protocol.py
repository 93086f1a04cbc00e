"""
The protocol that every publisher implements: all that the worker knows about a broker.

A publisher never raises for an event and never decides what happens next: it reports one outcome
per event, and `model.retry` judges. It promises no order; where a relay needs order, the relay
arranges it (`model.ordering`), helped by `route`.
"""

from collections.abc import Hashable, Mapping, Sequence
from datetime import timedelta
from typing import Literal, NamedTuple, Protocol

from outbox_core.model.attempt import Outcome
from outbox_core.model.event import Claim
from outbox_relay.publishers.parking import Parked

Sample = Mapping[str, str | None]
"""The event_type, aggregate_type and tenant_id of a kind of event that was seen lately."""


Level = Literal["ok", "warn", "fail"]


class CheckResult(NamedTuple):
    """One thing that is right or wrong, for people."""

    level: Level
    """fail: events would not arrive."""
    text: str
    cure: str = ""
    """What to do about it, where the text alone does not show that."""


class Publisher(Protocol):
    """One broker. One call is one attempt per event; retries are the relay's business. Safe to call
    from several threads. Making one connects to nothing: a broker that is away must not keep a
    relay from starting, nor `check` from reporting it."""

    def publish(self, batch: Sequence[Claim]) -> Sequence[Outcome]:
        """One outcome per event, in order: a poisoned event never fails its neighbours."""

    def route(self, claim: Claim) -> Hashable | None:
        """Events of one key with an equal route, sent in one call, arrive without a gap: a later
        one only if every earlier one did. So an equal route is an equal destination too: otherwise
        an event for a parked destination would be left out, and the next one of its key sent. None:
        no such promise."""

    def blame(self, batch: Sequence[Claim], outcomes: Sequence[Outcome]) -> Sequence[Outcome]:
        """Called when the broker answers a probe, although it acknowledged nothing of this batch
        and every failure was an OUTAGE: the same outcomes, with the destinations at fault."""

    def parked(self) -> Sequence[Parked]:
        """Destinations that take nothing now, while others do; the longest parked first."""

    def probe(self) -> None:
        """Return if the broker answers; raise PublisherError with the reason if it does not."""

    def check(self, samples: Sequence[Sample]) -> Sequence[CheckResult]:
        """What is right and wrong about the broker, and about the destinations of events such as
        these, without publishing or creating anything. For `outbox-relay check`; a broker that does
        not answer is a result too."""

    def close(self, timeout: timedelta) -> None:
        """Stop, and give up what is still in flight after this long."""

"""
The protocol that every broker implements, and all that the worker knows of one.

A publisher never raises for an event and never decides what happens next: it reports one outcome
per event, and `model.retry` judges. It promises no order; where a relay needs order, the relay
arranges it (`model.ordering`), helped by `route`.
"""

from collections.abc import Hashable, Sequence
from datetime import timedelta
from typing import Protocol

from outbox_relay.model.attempt import Outcome
from outbox_relay.model.event import Claim


class Publisher(Protocol):
    """One broker. One call is one attempt per event; retries are the relay's business.
    Safe to call from several threads."""

    def publish(self, batch: Sequence[Claim]) -> Sequence[Outcome]:
        """One outcome per event, in order: a poisoned event never fails its neighbours."""

    def route(self, claim: Claim) -> Hashable | None:
        """Events of one key with an equal route, sent in one call, arrive without a gap: a later
        one only if every earlier one did. None: no such promise."""

    def probe(self) -> None:
        """Return if the broker answers; raise PublisherError with the reason if it does not."""

    def close(self, timeout: timedelta) -> None:
        """Let go of what is in flight after at most this long."""

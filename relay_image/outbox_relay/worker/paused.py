"""
A paused relay: claims nothing, reaps nothing, holds no lanes, and talks to no broker.

It registers as usual, so that events are still kept for it, and keeps reading its backlog: how many
events wait, and for how long, stays visible while nothing is published. Called by `worker.relay`.
"""

import logging
from collections.abc import Sequence
from datetime import timedelta

from outbox_core.model.attempt import Outcome, Unsent
from outbox_core.model.event import Claim
from outbox_relay.publishers.parking import Parked
from outbox_relay.publishers.protocol import CheckResult, Sample
from outbox_relay.worker.context import Context
from outbox_relay.worker.reporting import Reporter

log = logging.getLogger("outbox.relay")

WATCH_EVERY_SECONDS = 5.0
"""Readiness depends on the store, and nothing else in the process would notice that it is away."""


class PausedPublisher:
    """The publisher of a relay that is paused."""

    def publish(self, batch: Sequence[Claim]) -> Sequence[Outcome]:
        return [Unsent("the relay is paused")] * len(batch)

    def route(self, claim: Claim) -> None:
        return None

    def blame(self, batch: Sequence[Claim], outcomes: Sequence[Outcome]) -> Sequence[Outcome]:
        return outcomes

    def parked(self) -> Sequence[Parked]:
        return ()

    def probe(self) -> None:
        pass

    def check(self, samples: Sequence[Sample]) -> Sequence[CheckResult]:
        return ()

    def close(self, timeout: timedelta) -> None:
        pass


def watch(context: Context, reporter: Reporter) -> None:
    """Runs until the process is stopped."""
    log.warning(
        "relay %s is paused: nothing is claimed, and its events wait; "
        "to resume, set paused: false and restart",
        context.settings.name,
        extra={"event": "paused"},
    )
    context.metrics.paused.set(1)
    while not context.stopping.is_set():
        reporter.report()
        context.stopping.wait(WATCH_EVERY_SECONDS)
    log.info("stopped", extra={"event": "stopped"})

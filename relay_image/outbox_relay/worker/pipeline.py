"""
One worker: claims, publishes and finalises batch after batch.

Several workers overlap: while one waits for the broker, another uses the database. A worker
finalises a batch before it claims the next, or in the same transaction. An outcome that could not
be written because the database is unavailable is kept, and written when it is back.
"""

import logging
import random
import time
from collections.abc import Sequence
from operator import attrgetter
from typing import NamedTuple

from outbox_core.contract.reasons import ProcessReason, reason_of
from outbox_core.errors import StoreError
from outbox_core.model.attempt import (
    Acked,
    Error,
    ErrorClass,
    Outcome,
    Refused,
    Unsent,
    Verdict,
    all_acked,
)
from outbox_core.model.event import Claim
from outbox_core.model.lifecycle import State
from outbox_core.model.ordering import BEHIND, KeyOrder, with_holds
from outbox_core.model.retry import judge
from outbox_core.observe.logs import MOST_LOGGED_IDS
from outbox_core.store.connection import Connection
from outbox_core.store.deliveries import Deliveries, Finished, Turn, Wanted
from outbox_core.store.lanes import Lanes
from outbox_core.store.tokens import fresh_token
from outbox_relay.worker.breaker import BreakerState
from outbox_relay.worker.context import Context
from outbox_relay.worker.polling import Pace, Share, fullness
from outbox_relay.worker.watermark import Watermark

log = logging.getLogger("outbox.relay")

LED_SECONDS = 0.05
"""If worker 0 has claimed within this time, it also claims what comes next."""

seq_of = attrgetter("seq")
created_at_of = attrgetter("created_at")


class Doubt(NamedTuple):
    """A claim that was sent but not answered: it may have been made, or may still be made."""

    token: int
    holder: int | None


class Worker:
    def __init__(self, index: int, context: Context) -> None:
        polling = context.settings.polling
        self._index = index
        self._context = context
        self._conn: Connection | None = None
        self._pace = Pace(
            polling.shortest.total_seconds(), polling.longest.total_seconds(), context.clock
        )
        self._watermark = self._new_watermark()
        self._done: Finished | None = None
        self._share = Share((), None)
        self._claimed_from: tuple[int, ...] = ()
        self._busy_lanes = 1
        self._turns = 0
        self._retry_in = 0.1
        self._turned_at = 0.0
        self._in_doubt: Doubt | None = None

    def run(self) -> None:
        """Runs until the process stops; then it finishes and records what is in flight."""
        context = self._context
        while not (context.stopping.is_set() and self._done is None and self._in_doubt is None):
            try:
                self._cycle()
                self._retry_in = 0.1
            except StoreError as error:  # unavailable, or a person must act: a right, the schema
                self._wait_for_store(error)
        self._close()

    def _cycle(self) -> None:
        context = self._context
        if self._in_doubt is not None:
            self._recover(self._in_doubt)
        stopping = context.stopping.is_set()
        limit = 0 if stopping else context.breaker.allowance(context.settings.batch_size)
        if not limit:
            if self._done is not None:
                self._turn(None)
            if not stopping:
                self._wait_for_broker()
            return
        try:
            batch = self._next_batch(limit)
        except BaseException:
            context.breaker.found_nothing()  # if it was the trial, it did not happen
            raise
        if not batch:
            context.breaker.found_nothing()
            if self._share.lanes:
                context.crew.rest(self._index, self._pace.pause())
            else:
                context.crew.wait_for_lanes(self._index, self._pace.pause())
            return
        self._pace.found()
        if 2 * len(batch) >= limit:  # with ordering or large events a batch may not be full
            context.crew.wake()
        self._done = self._publish(batch)
        if wait := self._pace.gather(fullness(batch, limit)):
            self._gather(wait)

    def _gather(self, seconds: float) -> None:
        """There is little to do: one worker is enough, unless it is held up by its broker."""
        context = self._context
        if self._index and context.clock() - context.first_claimed_at < LED_SECONDS:
            self._turn(None)
            context.crew.rest(self._index, seconds)
        else:
            context.stopping.wait(seconds)

    # Claim and finalise ---------------------------------------------------------------------

    def _next_batch(self, limit: int) -> list[Claim]:
        self._share = self._context.crew.share(self._index)
        if self._share.lanes != self._claimed_from:
            self._claimed_from = self._share.lanes
            self._watermark.reset()
        if self._share.lanes:
            return self._claim(limit)
        if self._done is not None:
            self._turn(None)
        return []

    def _claim(self, limit: int) -> list[Claim]:
        context = self._context
        floor = self._watermark.floor()
        if context.policy.max_age is not None:
            self._expire(limit, floor)
        self._turns += 1
        self._pace.claims()
        now = context.clock()
        if self._index == 0:
            context.first_claimed_at = now
        wanted = Wanted(
            token=fresh_token(),
            limit=limit,
            lanes=self._share.lanes,
            floor=floor,
            server=self._watermark.server,
            suspects=self._turns % 2 == 0,
            lane_limit=max(1, -(-limit // self._busy_lanes)),
            mark=self._watermark.wants_mark,
        )
        turn = self._turn(wanted)
        claims = turn.claims
        first = claims[0].line_from if claims else None
        # If the claim returned suspects, the line was not scanned.
        scanned = not (wanted.suspects and claims and first is None)
        self._watermark.saw(floor, first, turn.mark, context.clock() - now, scanned)
        if not context.ordered and self._index == 0:  # the one that always claims
            context.floor = self._watermark.safe
        self._busy_lanes = max(1, len({c.lane for c in claims}))
        return claims

    def _turn(self, wanted: Wanted | None) -> Turn:
        """Record how the last batch ended, if there is one, and claim the next, if wanted."""
        context = self._context
        start = context.clock()
        deliveries = self._deliveries()
        if wanted is not None:
            context.in_flight.ask(wanted.token)
            self._in_doubt = Doubt(wanted.token, self._share.holder)
        self._turned_at = context.clock()
        try:
            turn = deliveries.turn(self._done, wanted, self._share.holder)
        except StoreError:
            if self._done is not None:
                self._done = self._done._replace(again=True)
            raise
        self._in_doubt = None
        context.crew.settled(self._index, self._share if wanted else Share((), None))
        if self._done is not None:
            context.in_flight.remove(self._done.token)
            self._done = None
            if turn.lost:
                context.metrics.lost.inc(len(turn.lost))
                log.warning(
                    "%d claims were taken over before we finalised them: their events may be "
                    "published twice",
                    len(turn.lost),
                    extra={"event": "lost", "seqs": turn.lost[:MOST_LOGGED_IDS]},
                )
        context.health.clear("store")
        if turn.claims:
            context.metrics.batch.observe(len(turn.claims))
            seqs = list(map(seq_of, turn.claims))
            context.in_flight.add(turn.claims[0].token, seqs, start)
        elif wanted is not None:
            context.in_flight.remove(wanted.token)
        context.metrics.stage.labels("store").observe(context.clock() - start)
        return turn

    def _recover(self, doubt: Doubt) -> None:
        """The connection was lost during a claim: we do not know whether it was made. Before
        anything else, it is given back. The backend may not have noticed the loss, and may still
        claim: with ordering it is fenced off first; otherwise the keeper keeps checking for a
        while."""
        context, settings = self._context, self._context.settings
        deliveries = self._deliveries()
        assert self._conn is not None
        if doubt.holder is not None:
            lanes = Lanes(self._conn, context.relay, settings.owner, settings.lease)
            context.crew.fenced(doubt.holder, lanes.fence)
        if deliveries.recover(doubt.token) or doubt.holder is not None:
            context.in_flight.remove(doubt.token)
        else:
            until = context.clock() + settings.lease.total_seconds()
            context.in_flight.doubt(doubt.token, until)
        self._in_doubt = None

    def _deliveries(self) -> Deliveries:
        context = self._context
        if self._conn is None:
            self._conn = context.open_connection(f"worker {self._index}")
        settings = context.settings
        return Deliveries(self._conn, context.relay, settings.name, settings.owner, settings.lease)

    def _expire(self, limit: int, floor: int) -> None:
        context = self._context
        assert context.policy.max_age is not None
        dead = self._deliveries().expire(
            context.policy.max_age, self._share.lanes, limit, floor, context.blocks
        )
        if dead:
            context.metrics.dead.inc(len(dead))
            log.error(
                "%d events are older than maxAge and were declared dead",
                len(dead),
                extra={
                    "event": "dead",
                    "error_class": "expired",
                    "event_ids": dead[:MOST_LOGGED_IDS],
                },
            )

    # Publish --------------------------------------------------------------------------------

    def _publish(self, batch: list[Claim]) -> Finished:
        context = self._context
        start = context.clock()
        outcomes = self._in_waves(batch) if context.ordered else self._send(batch)
        now = context.clock()
        context.metrics.stage.labels("publish").observe(now - start)
        # claimed_at is when the claim's transaction began: an event may have arrived after that.
        since_claim = now - self._turned_at
        if context.breaker.saw(outcomes):
            self._report_breaker()
        failed: list[tuple[Claim, Outcome]] = []
        arrived, answers = batch, outcomes
        if not all_acked(outcomes):
            pairs = list(zip(batch, outcomes, strict=True))
            failed = [(claim, outcome) for claim, outcome in pairs if type(outcome) is not Acked]
            arrived = [claim for claim, outcome in pairs if type(outcome) is Acked]
            answers = [outcome for outcome in outcomes if type(outcome) is Acked]
        # Strict: what a publisher forgot to answer for is not published.
        answered = zip(arrived, answers, strict=True)
        results = [result for _, (result,) in answered]  # type: ignore[misc]
        context.metrics.published.inc(len(arrived))
        acked_at = batch[0].claimed_at + since_claim * 1e6
        context.metrics.latency.observe(
            [
                (acked_at - created_at) / 1e6 if created_at < acked_at else 0.0
                for created_at in map(created_at_of, arrived)
            ]
        )
        return Finished(batch[0].token, list(map(seq_of, arrived)), results, self._judge(failed))

    def _send(self, batch: Sequence[Claim]) -> Sequence[Outcome]:
        try:
            outcomes = self._context.publisher.publish(batch)
        except Exception as error:  # it must not raise; but a defect must not lose a batch
            log.exception("the publisher failed", extra={"event": "defect"})
            unknown = Error.of(ErrorClass.OUTAGE, type(error).__name__, str(error))
            outcomes = [Refused(unknown)] * len(batch)
        context = self._context
        # Not while stopping: the probe may take longer than the time that is left.
        if not context.stopping.is_set() and context.breaker.doubts(outcomes):
            if context.breaker.is_mine_to_probe():
                self._probe()
            if context.breaker.state is not BreakerState.OPEN:
                outcomes = context.publisher.blame(batch, outcomes)
            self._report_breaker()
        return outcomes

    def _probe(self) -> None:
        context = self._context
        try:
            context.publisher.probe()
        except Exception as error:
            context.breaker.probed(str(error), reason_of(error, ProcessReason.BROKER_UNREACHABLE))
        else:
            context.breaker.probed(None)

    def _in_waves(self, batch: list[Claim]) -> Sequence[Outcome]:
        found: dict[int, Outcome] = {}
        order = KeyOrder()
        for wave in order.waves(batch, self._context.publisher.route):
            if self._context.stopping.is_set() and found:  # the rest is given back
                break
            outcomes = self._send(wave)
            if len(wave) == len(batch):  # as a rule
                return outcomes
            order.saw(wave, outcomes)
            found.update(zip((c.seq for c in wave), outcomes, strict=True))
        return [found.get(c.seq, BEHIND) for c in batch]

    def _judge(self, failed: Sequence[tuple[Claim, Outcome]]) -> list[Verdict]:
        """The verdicts on what was not acknowledged, with their log lines and metrics."""
        if not failed:
            return []
        context = self._context
        judged = [(c, judge(o, c, context.policy, random.random())) for c, o in failed]
        metrics = context.metrics
        groups: dict[tuple[str, str, State], list[Claim]] = {}
        for (claim, outcome), (_, verdict) in zip(failed, judged, strict=True):
            if isinstance(outcome, Unsent):
                metrics.returned.inc()
                continue
            assert verdict.error is not None
            metrics.failed.labels(verdict.error.kind.value).inc()
            (metrics.dead if verdict.state is State.DEAD else metrics.retried).inc()
            key = (verdict.error.kind.value, verdict.error.code, verdict.state)
            groups.setdefault(key, []).append(claim)
        for (kind, code, state), claims in groups.items():
            sample = next(o for c, o in failed if c is claims[0])
            log.log(
                logging.ERROR if state is State.DEAD else logging.WARNING,
                "%d events %s: %s",
                len(claims),
                "are dead" if state is State.DEAD else "failed and will be tried again",
                sample.error.text if isinstance(sample, Refused) else "",
                extra={
                    "event": "dead" if state is State.DEAD else "retry",
                    "error_class": kind,
                    "error_code": code,
                    "event_ids": [c.event_id for c in claims[:MOST_LOGGED_IDS]],
                    "traceparents": [t for c in claims[:MOST_LOGGED_IDS] if (t := c.traceparent)],
                },
            )
        if context.ordered:
            return with_holds(judged, context.blocks)
        return [verdict for _, verdict in judged]

    # Waiting --------------------------------------------------------------------------------

    def _wait_for_broker(self) -> None:
        """While the breaker is open: worker 0 probes, the others wait."""
        context = self._context
        pause = context.breaker.next_probe()
        if pause is None or self._index != 0:
            context.crew.rest(self._index, 0.1)
            return
        self._report_breaker()
        if context.breaker.state is not BreakerState.OPEN:
            self._report_breaker()  # another worker closed it just now, before our report
            return
        if not context.stopping.wait(pause):
            self._probe()
            # If it answers we are ready again: there may be no event for a trial for hours.
            self._report_breaker()

    def _report_breaker(self) -> None:
        context = self._context
        if context.breaker.state is BreakerState.OPEN:
            context.metrics.breaker.set(1)
            context.health.trouble("broker", context.breaker.reason, context.breaker.cause)
        else:
            context.metrics.breaker.set(0)
            context.health.clear("broker")

    def _wait_for_store(self, why: StoreError) -> None:
        context = self._context
        context.health.trouble("store", why)
        self._close()
        if context.stopping.is_set():
            time.sleep(self._retry_in)  # the last outcomes are still to be written
        else:
            context.stopping.wait(self._retry_in)
        self._retry_in = min(5.0, self._retry_in * 2)

    def _close(self) -> None:
        if self._conn is not None:
            self._conn.close()
            self._conn = None
        # The next one may reach another server, which hands out seqs again that we have passed.
        self._watermark = self._new_watermark()

    def _new_watermark(self) -> Watermark:
        context = self._context
        return Watermark(
            context.clock, context.ordered, sweep_every=context.settings.lease.total_seconds() / 2
        )

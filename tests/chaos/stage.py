"""
The stage of one case: a database, a proxy that loses, a broker that remembers, and relays.

`scenes` play on it, `cases` judge what came of it. Everything between relays and database goes
through the proxy; the stage itself talks to the database directly.
"""

import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count
from typing import Any, TypeVar

from dev.services import wait_until
from dev.services.waiting import INTERVAL_SECONDS
from fixtures.agreement import Memory, Watch, disagreements
from fixtures.losing import LosingProxy, Loss, Plan, Strike, Times
from fixtures.outbox import Outbox
from fixtures.relays import Broker, LocalRelay, local_settings
from outbox_core.contract.settings import RelaySettings
from outbox_core.errors import PublisherError, StoreUnavailable
from outbox_core.model.attempt import Acked, Outcome
from outbox_core.model.event import Claim

LEASE = 1.5
BATCH = 40
WORKERS = 2
TIMES = Times(swallow=1.3 * LEASE, late=0.5 * LEASE, delay=0.5 * LEASE)
"""A swallowed answer outlasts the lease; a late request comes when the client is back."""
SLACK = 2.5
"""Seconds on top of two leases, for a machine that plays several cases at once."""
PATIENCE = 40.0
NUMBERS = count(1)
LASTING = {"start", "store", "keeper", "relay"}
"""Troubles that end by themselves when the connection is back."""

T = TypeVar("T")


class Book(Broker):
    """What was acknowledged, by whomever, in the order of arrival."""

    def __init__(self) -> None:
        super().__init__()
        self.arrived: list[Claim] = []
        self.judge: Callable[[Claim], Outcome] = lambda claim: Acked(f"t[0]@{claim.seq}")
        self.failing_probes = 0
        """How many probes more it does not answer."""
        self._booking = threading.Lock()

    def publish(self, batch: Sequence[Claim]) -> Sequence[Outcome]:
        self.before(batch)
        with self._booking:
            outcomes = [self.judge(claim) for claim in batch]
            for claim, outcome in zip(batch, outcomes, strict=True):
                if isinstance(outcome, Acked):
                    self.arrived.append(claim)
        return outcomes

    def probe(self) -> None:
        if self.failing_probes > 0:
            self.failing_probes -= 1
            raise PublisherError("away")


def in_doubt(strike: Strike) -> int:
    """How many events may go out twice: what one connection had in flight. A keeper whose answer is
    kept back for longer than the lease cannot renew what any worker of its process has."""
    is_silent = strike.loss is Loss.SWALLOW and strike.trip.application.endswith(" keeper")
    return BATCH * WORKERS if is_silent else BATCH


class Stage:
    def __init__(self, dsn: str, ordering: str, relays: int, plan: Plan, seed: int) -> None:
        self.rng = random.Random(seed)
        self.ordering = ordering
        self.size = relays
        self.plan = plan
        self.outbox = Outbox(dsn)
        self.proxy = LosingProxy(dsn, plan, TIMES)
        self.book = Book()
        self.relays: list[LocalRelay] = []
        self.settings: dict[str, Any] = {}
        """What a scene adds to every relay's."""
        self.dead: set[int] = set()
        """The seqs that are to end as DEAD."""
        self.repeats = 0
        """Arrivals that a scene asked for on top of the first."""
        self._variable = f"OUTBOX_CHAOS_DSN_{next(NUMBERS)}"
        os.environ[self._variable] = self.proxy.dsn
        self._emitted_at = 0.0
        self.watch = Watch(dsn, lambda conn: disagreements(conn, self._memories()), lambda: LEASE)

    def close(self) -> None:
        self.watch.stop()
        self.proxy.closing.set()  # no fault keeps anybody waiting any more
        for relay in self.relays:
            relay.relay.stop()
        for relay in self.relays:
            relay.stop()
        self.proxy.close()
        self.outbox.close()
        del os.environ[self._variable]

    # Acting ---------------------------------------------------------------------------------

    def relay_settings(self, pod: str) -> RelaySettings:
        return local_settings(
            self._variable,
            pod,
            "relay",
            **{
                "ordering": self.ordering,
                "lease": f"{LEASE}s",
                "batchSize": BATCH,
                "workers": WORKERS,
                "retry": {"baseDelay": "20ms", "maxDelay": "100ms", "maxAttempts": 100},
                "polling": {"shortest": "10ms", "longest": "200ms"},
                **self.settings,
            },
        )

    def start(self, how_many: int | None = None) -> None:
        """As many as the case has, unless given."""
        for _ in range(self.size if how_many is None else how_many):
            pod = f"pod-{len(self.relays) + 1}"
            self.relays.append(LocalRelay(self.relay_settings(pod), self.book))

    def register(self) -> int:
        return self.outbox.register(ordering=self.ordering)

    def emit(self, keyed: int = 60, keyless: int = 40, keys: int = 20) -> list[int]:
        """Their seqs. Those without a key are spread over all lanes."""
        self._emitted_at = time.monotonic()
        wanted = [f"k{n % keys}" for n in range(keyed)] + [None] * keyless
        self.rng.shuffle(wanted)
        rows = self.outbox.sql(
            "INSERT INTO outbox.event (event_type, payload, ordering_key)"
            " SELECT 'order.created', '', k FROM unnest(%s::text[]) WITH ORDINALITY AS w (k, n)"
            " ORDER BY n RETURNING seq",
            wanted,
        )
        return [seq for (seq,) in rows]

    def emit_until_struck(self) -> None:
        """A trickle, so that whatever a busy relay sends is sent."""
        deadline = time.monotonic() + PATIENCE
        while not self.plan.struck.wait(0.05):
            if time.monotonic() > deadline:
                raise TimeoutError("the fault was never met: does this scene send that statement?")
            self.emit(20, 10)

    def insist(self, act: Callable[[], T]) -> T:
        """As a person, a CronJob or Spark does: again, after a connection was lost."""
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                return act()
            except StoreUnavailable:
                if time.monotonic() > deadline:
                    raise
                self.proxy.closing.wait(0.05)

    # Judging --------------------------------------------------------------------------------

    def wait_until_done(self) -> None:
        """Nothing is stuck for longer than two leases after the fault."""
        wait_until(lambda: not self.proxy.is_losing, PATIENCE, "the fault is over")
        until = max(self._emitted_at, self.proxy.last_fault_at) + 2 * LEASE + SLACK
        while missing := self._missing():
            if time.monotonic() > until:
                raise AssertionError(f"stuck {SLACK:g} s beyond two leases: {missing}")
            time.sleep(INTERVAL_SECONDS)

    def _missing(self) -> str:
        # First: what is routed meanwhile is seen among the deliveries.
        unrouted = self.outbox.value("SELECT count(*) FROM outbox.unmatched")
        rows = self.outbox.sql(
            "SELECT d.state::text, d.hold::text, d.seq, d.lane, d.claimed_by, l.token"
            "  FROM outbox.deliveries d JOIN outbox.relay r ON r.id = d.relay_id"
            "  LEFT JOIN outbox.lane l ON l.relay_id = d.relay_id AND l.lane = d.lane"
            " WHERE r.name = 'relay' AND d.state <> 'PUBLISHED' ORDER BY d.seq"
        )
        rows = [r for r in rows if not (r[0] == "DEAD" and r[2] in self.dead)]
        if not rows and not unrouted:
            return ""
        kinds = Counter(row[:2] for row in rows)
        return f"{dict(kinds)}, {unrouted} unmatched, first {rows[:1]}"

    def assert_good(self) -> None:
        self._assert_arrivals()
        found: set[str] = set()

        def agreed() -> bool:
            nonlocal found
            found = self._complaints()
            return not found

        # Once is enough: lanes that move between processes are nobody's for a moment.
        with suppress(TimeoutError):
            wait_until(agreed, 2 * LEASE + SLACK, "agreement")
        shown = sorted(found)[:5]
        assert not found, f"{len(found)} times memory is not the database, or idle: {shown}"
        self.watch.assert_nothing_lasted()
        for relay in self.relays:
            assert relay.relay.defect is None, f"{relay.settings.owner}: {relay.relay.defect!r}"

    def _assert_arrivals(self) -> None:
        dead = {
            s for (s,) in self.outbox.sql("SELECT seq FROM outbox.deliveries WHERE state='DEAD'")
        }
        assert dead == self.dead, f"dead: {sorted(dead)}, and not {sorted(self.dead)}"
        times = Counter(claim.seq for claim in self.book.arrived)
        stored = {seq for (seq,) in self.outbox.sql("SELECT seq FROM outbox.event")}
        lost = stored - times.keys() - self.dead
        assert not lost, f"lost: {sorted(lost)[:10]}"
        duplicates = times.total() - len(times) - self.repeats
        allowed = max(BATCH, sum(map(in_doubt, self.plan.strikes)))
        assert duplicates <= allowed, f"{duplicates} duplicates, of {allowed} allowed"
        if self.ordering == "Key":
            latest: dict[str, int] = {}
            seen: set[int] = set()
            for claim in self.book.arrived:
                key = claim.ordering_key
                if key is None or claim.seq in seen:
                    continue
                assert claim.seq > latest.get(key, 0), (
                    f"order: seq {claim.seq} of {key} came after {latest[key]}"
                )
                latest[key] = claim.seq
                seen.add(claim.seq)

    def _memories(self) -> list[Memory]:
        return [relay.memory() for relay in list(self.relays) if relay.running]

    def _complaints(self) -> set[str]:
        found = disagreements(self.outbox.conn, self._memories())
        if self.ordering == "Key":
            found |= {f"{m.owner} has no lanes" for m in self._memories() if not m.lanes}
            free = "SELECT count(*) FROM outbox.lane JOIN outbox.relay r ON r.id = relay_id"
            if n := self.outbox.value(f"{free} WHERE name = 'relay' AND token IS NULL"):
                found.add(f"{n} lanes are free")
        for relay in filter(lambda relay: relay.running, self.relays):
            troubles = relay.relay.health.troubles
            # The others stay until somebody asks for the status, or an event tries the broker.
            found |= {f"{relay.settings.owner}: {troubles[k]}" for k in LASTING & troubles.keys()}
        return found

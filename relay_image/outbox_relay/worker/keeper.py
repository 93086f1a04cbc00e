"""
The keeper: what must go on beside the workers, on a connection of its own.

Renews claims while a publish is slow, keeps and balances the lanes of an ordered relay, reaps, and
offers events to relays that registered late. Busy or idle it costs a handful of statements.
"""

import logging
import threading

from outbox_relay.contract.reasons import Reason
from outbox_relay.errors import StoreError
from outbox_relay.store.connection import Connection
from outbox_relay.store.deliveries import Deliveries
from outbox_relay.store.lanes import Lanes
from outbox_relay.store.relays import route_unmatched
from outbox_relay.worker.context import Context
from outbox_relay.worker.reaper import Reaper

log = logging.getLogger("outbox.keeper")

BALANCE_EVERY = 1.0
ROUTE_CHUNK = 5000
"""Some 50 ms: between two of them leases are renewed."""
RELANE_CHUNK = 5000
SHORTEST_REAP = 0.5
IDLE_CHORES = 30.0
RETIRED = (
    "it was retired, and no event comes to it any more: stop this process, or restart it to "
    "register anew"
)


class Keeper:
    def __init__(self, context: Context) -> None:
        self._context = context
        self._conn: Connection | None = None
        self._lease = context.settings.lease.total_seconds()
        self._due = {"renew": 0.0, "balance": 0.0, "chores": 0.0}
        self._routing = False  # there is more to route than fitted into one step
        self._hungry = False  # fewer lanes than our share: somebody is about to let go of some

    def run(self, until: threading.Event) -> None:
        """Until the workers are done: their claims are renewed while they drain."""
        while not until.is_set():
            try:
                self._round()
            except StoreError as error:
                self._context.health.trouble("store", error)
                self._routing = False
                self.close()
            until.wait(self._nap())

    def join(self) -> None:
        """An ordered relay takes part from here on."""
        context = self._context
        if context.ordered:
            context.crew.become(self._lanes().join())
            self._balance()

    def leave(self) -> None:
        """Nothing is in flight any more: let the others have our lanes at once."""
        crew = self._context.crew
        if crew.holder is not None:
            self._lanes().leave(crew.holder)
            crew.become(None)

    def close(self) -> None:
        if self._conn is not None:
            self._conn.close()
            self._conn = None

    def _nap(self) -> float:
        if self._routing or not self._due["chores"]:
            return 0.0
        step = BALANCE_EVERY if self._is_lively() else self._lease / 6
        return min(step, self._lease / 6, IDLE_CHORES)

    def _is_lively(self) -> bool:
        """Is it worth a look every second whether lanes should move?"""
        return self._context.ordered and (self._hungry or self._context.crew.is_busy)

    def _round(self) -> None:
        context = self._context
        now = context.clock()
        third = self._lease / 3
        for token, seqs in context.in_flight.older_than(now - third).items():
            kept = self._deliveries().renew(token, seqs)
            context.in_flight.renewed(token, now)
            context.metrics.renewed.inc(kept)
        if context.ordered and now >= self._due["renew"]:
            self._due["renew"] = now + third
            self._renew_lanes()
        if context.ordered and not context.stopping.is_set() and now >= self._due["balance"]:
            self._balance()
            self._due["balance"] = now + (BALANCE_EVERY if self._is_lively() else third)
        if now >= self._due["chores"]:
            self._due["chores"] = now + max(SHORTEST_REAP, min(self._lease / 2, IDLE_CHORES))
            self._chores()
        elif self._routing:
            self._route()

    def _chores(self) -> None:
        context = self._context
        found = self._deliveries().chores(context.ordered)
        if found.retired:
            context.health.trouble("relay", RETIRED, Reason.RELAY_RETIRED)
        if found.overdue_claims or found.expired_holders:
            report = Reaper(self._connection(), context.relay, context.settings).reap()
            context.metrics.reaped.inc(report.reaped)
            context.metrics.dead.inc(report.dead)
            context.crew.hint()
        if found.wrong_lanes:
            if self._deliveries().relane(RELANE_CHUNK) == RELANE_CHUNK:
                self._due["chores"] = 0.0  # there are more: at once, but after what must not wait
            context.crew.hint()
        if found.unmatched_events:
            self._route()

    def _route(self) -> None:
        """One step: with many events that nobody wants there are many, and leases do not wait."""
        context = self._context
        looked_at = route_unmatched(self._connection(), ROUTE_CHUNK)
        self._routing = looked_at == ROUTE_CHUNK and not context.stopping.is_set()
        if not self._routing:
            context.crew.hint()

    def _renew_lanes(self) -> None:
        with self._context.crew.steady() as holder:
            if holder is None or self._lanes().renew(holder):
                return
        # We were silent for longer than the lease, and others have what was ours.
        log.warning("our lanes were taken over; starting again", extra={"happening": "lanes_lost"})
        self.join()

    def _balance(self) -> None:
        context = self._context
        if context.crew.holder is None:
            return
        lanes = self._lanes()
        shares = lanes.shares()
        mine = context.crew.lanes
        if len(mine) < shares.fair and shares.free:
            with context.crew.steady() as holder:
                assert holder is not None
                won = lanes.acquire(holder, shares.fair - len(mine))
                context.crew.add(won)
            if won:
                context.crew.hint()
        elif len(mine) > shares.fair:
            surplus = mine[shares.fair :]
            if context.crew.remove(surplus, timeout=self._lease / 6):
                with context.crew.steady() as holder:
                    assert holder is not None
                    lanes.let_go(holder, surplus)
            else:  # still in flight: ours until a later round
                context.crew.add(surplus)
        self._hungry = len(context.crew.lanes) < shares.fair
        context.metrics.lanes.set(len(context.crew.lanes))

    def _connection(self) -> Connection:
        if self._conn is None:
            self._conn = self._context.open_connection("keeper")
        return self._conn

    def _deliveries(self) -> Deliveries:
        settings = self._context.settings
        return Deliveries(self._connection(), self._context.relay, settings.owner, settings.lease)

    def _lanes(self) -> Lanes:
        settings = self._context.settings
        return Lanes(self._connection(), self._context.relay, settings.owner, settings.lease)

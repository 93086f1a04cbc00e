"""
The keeper: background work beside the workers, on a connection of its own.

Renews claims while a publish is slow, renews and balances the lanes of an ordered relay, reaps,
merges small rows of what was published, and offers unmatched events to relays that registered late.
It needs few statements, busy or idle.
"""

import logging
import threading
from collections.abc import Mapping
from typing import Any

from outbox_core.contract.reasons import ProcessReason
from outbox_core.errors import StoreError
from outbox_core.store import relays
from outbox_core.store.connection import Connection
from outbox_core.store.deliveries import Deliveries
from outbox_core.store.lanes import Lanes, Seen
from outbox_core.store.tokens import fresh_token
from outbox_relay.worker.context import Context
from outbox_relay.worker.reaper import Reaper

log = logging.getLogger("outbox.keeper")

BALANCE_EVERY_SECONDS = 1.0
ROUTE_CHUNK_EVENTS = 5000
"""About 50 ms: leases are renewed between two chunks."""
RELANE_CHUNK_DELIVERIES = 5000
SWEEP_CHUNK_KEYS = 2000
"""About 20 ms."""
ROLLOUT_SECONDS = 600.0
"""How long processes with old and with new settings may run side by side."""
SHORTEST_CHORES_PAUSE_SECONDS = 0.5
LONGEST_CHORES_PAUSE_SECONDS = 30.0
WHY_RETIRED = (
    "the relay was retired and gets no more events: stop this process, or restart it to register "
    "again"
)


class Keeper:
    def __init__(self, context: Context) -> None:
        self._context = context
        self._conn: Connection | None = None
        self._lease = context.settings.lease.total_seconds()
        self._due = {"renew": 0.0, "balance": 0.0, "chores": 0.0}
        self._routing = False  # there are more unmatched events than fit into one step
        self._sweeping: int | None = None  # the key that the sweep has reached
        self._merging = False  # there are more small rows of what was published
        self._hungry = False  # fewer lanes than our share: another process will release some
        self._differs_since: float | None = None  # the registration, from our settings
        self._joining: int | None = None  # a token that may already be registered
        self._moving = False  # lanes may have been gained or lost without our knowing

    def run(self, until: threading.Event) -> None:
        """Runs until the workers are done: their claims are renewed while they drain."""
        health = self._context.health
        while not until.is_set():
            try:
                self._round()
            except StoreError as error:
                health.trouble("keeper", error)
                self._routing = self._merging = False
                self.close()
            else:
                health.clear("keeper")
            until.wait(self._nap())

    def join(self) -> None:
        """Become a holder and take lanes, if the relay is ordered."""
        if self._context.ordered:
            self._join()
            self._balance()

    def leave(self) -> None:
        """Release our lanes to the others at once; nothing may be in flight."""
        crew = self._context.crew
        if crew.holder is None:
            return
        try:
            self._lanes().leave(crew.holder)
        except StoreError:  # the connection may have died unnoticed: try again, on a new one
            self.close()
            self._lanes().leave(crew.holder)
        crew.become(None)

    def close(self) -> None:
        """Close the connection. A new one may find everything changed, so all work is due again."""
        self._due = dict.fromkeys(self._due, 0.0)
        if self._conn is not None:
            self._conn.close()
            self._conn = None

    def _nap(self) -> float:
        if self._routing or self._merging or (self._conn is not None and not self._due["chores"]):
            return 0.0
        step = BALANCE_EVERY_SECONDS if self._is_lively() else self._lease / 6
        return min(step, self._lease / 6, LONGEST_CHORES_PAUSE_SECONDS)

    def _is_lively(self) -> bool:
        """Should lanes be checked every second?"""
        return self._context.ordered and (
            self._hungry or self._sweeping is not None or self._context.crew.is_busy
        )

    def _round(self) -> None:
        context = self._context
        now = context.clock()
        third = self._lease / 3
        for token, seqs in context.in_flight.older_than(now - third).items():
            kept = self._deliveries().renew(token, seqs)
            context.in_flight.renewed(token, now)
            context.metrics.renewed.inc(kept)
        for token in context.in_flight.in_doubt(now):
            if self._deliveries().recover(token):
                context.in_flight.remove(token)
        if context.ordered:
            self._keep_lanes(now)
        if now >= self._due["chores"]:
            self._due["chores"] = now + max(
                SHORTEST_CHORES_PAUSE_SECONDS, min(self._lease / 2, LONGEST_CHORES_PAUSE_SECONDS)
            )
            self._chores()
        elif self._routing:
            self._route()
        if self._sweeping is not None:
            self._sweep()
        if self._merging:
            self._merge()

    def _chores(self) -> None:
        context = self._context
        found = self._deliveries().chores(context.ordered)
        known = found.registration
        if known is not None and known["retirement"] is not None:
            context.health.trouble("relay", WHY_RETIRED, ProcessReason.RELAY_RETIRED)
        elif known is None or known["name"] != context.settings.name:
            # Behind a pooler, the connection may reach another database unnoticed.
            context.register_again(self._connection())
            return
        else:
            self._compare(known)
        if found.overdue_claims or found.expired_holders:
            report = Reaper(self._connection(), context.relay, context.settings).reap()
            context.metrics.reaped.inc(report.reaped)
            context.metrics.dead.inc(report.dead)
            context.crew.hint()
        if found.wrong_lanes:
            if self._deliveries().relane(RELANE_CHUNK_DELIVERIES) == RELANE_CHUNK_DELIVERIES:
                self._due["chores"] = 0.0  # there are more: next round, after the urgent work
            context.crew.hint()
        if found.unmatched_events:
            self._route()
        if found.events_behind and self._sweeping is None:
            self._sweep()
        self._merging = found.small_rows

    def _compare(self, known: Mapping[str, Any]) -> None:
        """If the registration is older than ours, it came with a backup. If it is newer, another
        process registered since: in a rollout it has newer settings, or it is an old process that
        was restarted. If it still differs after a rollout, the process that made it is gone."""
        context, now = self._context, self._context.clock()
        if relays.agrees(known, context.settings):
            self._differs_since = None
        elif known["version"] < context.version:
            context.register(self._connection())
        elif self._differs_since is None:
            self._differs_since = now
            log.warning(
                "the registered subscription or ordering of relay %s differs from this process's "
                "settings; if that does not change, ours is registered again",
                context.settings.name,
                extra={"event": "registration_differs"},
            )
        elif now - self._differs_since > ROLLOUT_SECONDS:
            self._differs_since = None
            context.register(self._connection())

    def _route(self) -> None:
        """One step: with many unmatched events there are many, and leases must be renewed."""
        context = self._context
        checked = relays.route_unmatched(self._connection(), ROUTE_CHUNK_EVENTS)
        self._routing = checked == ROUTE_CHUNK_EVENTS and not context.stopping.is_set()
        if not self._routing:
            context.crew.hint()

    def _sweep(self) -> None:
        """One step. Normally a key is released by what unblocks it: this finds keys that were
        missed."""
        self._sweeping = self._deliveries().sweep_keys(
            self._context.crew.lanes, self._sweeping, SWEEP_CHUNK_KEYS
        )

    def _merge(self) -> None:
        """One step, of a few milliseconds."""
        self._merging = self._deliveries().merge() and not self._context.stopping.is_set()

    # Lanes ----------------------------------------------------------------------------------

    def _keep_lanes(self, now: float) -> None:
        third = self._lease / 3
        if now >= self._due["renew"]:
            self._renew_lanes()
            self._due["renew"] = now + third
        if not self._context.stopping.is_set() and now >= self._due["balance"]:
            self._balance()
            self._due["balance"] = now + (BALANCE_EVERY_SECONDS if self._is_lively() else third)

    def _join(self) -> None:
        context = self._context
        if not relays.is_registered(self._connection(), context.relay, context.settings.name):
            context.register_again(self._connection())
        if self._joining is None:
            self._joining = fresh_token()
        self._lanes().join(self._joining)
        context.crew.become(self._joining)
        self._joining = None

    def _rejoin(self) -> None:
        """We were silent for longer than the lease, and others have taken our lanes."""
        log.warning("our lanes were taken over; starting again", extra={"event": "lanes_lost"})
        self._join()

    def _renew_lanes(self) -> None:
        self._be_sure()
        with self._context.crew.steady() as holder:
            is_holder = holder is not None and self._lanes().renew(holder)
        if not is_holder:
            self._rejoin()

    def _be_sure(self) -> None:
        """A statement whose answer was lost may have changed our lanes or our token, and may still
        be running: fence it off. `_balance` then reads what we hold."""
        crew = self._context.crew
        holder = crew.holder
        if holder is None or not (self._moving or crew.is_in_doubt):
            return
        if crew.fenced(holder, self._lanes().fence) is None:
            self._rejoin()
        self._moving = False

    def _balance(self) -> None:
        self._be_sure()
        context = self._context
        crew, lanes = context.crew, self._lanes()
        with crew.steady() as holder:
            if holder is None:
                return
            seen = lanes.seen(holder)
            if seen.is_holder:
                self._agree(seen)
                wanted = seen.fair - len(crew.lanes)
                if wanted > 0 and seen.free:
                    self._moving = True
                    won = lanes.acquire(holder, wanted)
                    self._moving = False
                    crew.add(won)
        if not seen.is_holder:
            self._rejoin()
            self._hungry = True
            return
        if surplus := crew.lanes[seen.fair :]:
            self._let_go(lanes, surplus)
        self._hungry = len(crew.lanes) < seen.fair
        context.metrics.lanes.set(len(crew.lanes))

    def _agree(self, seen: Seen) -> None:
        """What we remember is a guess: the database knows which lanes are ours."""
        crew = self._context.crew
        if unknown := set(seen.held).difference(crew.lanes):
            crew.add(unknown)
        if gone := set(crew.lanes).difference(seen.held):
            log.warning(
                "%d lanes are no longer ours: they were changed by hand, or the database was "
                "restored",
                len(gone),
                extra={"event": "lanes_lost"},
            )
            crew.remove(gone, timeout=0.0)

    def _let_go(self, lanes: Lanes, surplus: tuple[int, ...]) -> None:
        crew = self._context.crew
        if crew.remove(surplus, timeout=self._lease / 6):
            with crew.steady() as holder:
                if holder is not None:
                    self._moving = True
                    lanes.let_go(holder, surplus)
                    self._moving = False
        else:  # still in flight: ours until a later round
            crew.add(surplus)

    def _connection(self) -> Connection:
        if self._conn is None:
            self._conn = self._context.open_connection("keeper")
        return self._conn

    def _deliveries(self) -> Deliveries:
        context, settings = self._context, self._context.settings
        return Deliveries(
            self._connection(), context.relay, settings.name, settings.owner, settings.lease
        )

    def _lanes(self) -> Lanes:
        settings = self._context.settings
        return Lanes(self._connection(), self._context.relay, settings.owner, settings.lease)

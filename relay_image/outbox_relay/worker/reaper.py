"""
Reaping: claims whose lease has expired become PENDING again, or DEAD if the event is the cause.

Runs once as `outbox-relay reap` (a CronJob, so that it happens even if no relay is left) and
regularly in the relays themselves, because a CronJob runs at most once a minute.
"""

import logging
import random
from collections.abc import Sequence
from typing import NamedTuple

from outbox_core.contract.settings import RelaySettings
from outbox_core.errors import RelayUnknown
from outbox_core.model.event import Claim
from outbox_core.model.lifecycle import State
from outbox_core.model.ordering import with_holds
from outbox_core.model.retry import Retry, judge_crash
from outbox_core.observe.logs import MOST_LOGGED_IDS
from outbox_core.store.connection import Connection, connect, end_frozen, translated
from outbox_core.store.deliveries import Deliveries
from outbox_core.store.lanes import Lanes
from outbox_core.store.migrate import require_current
from outbox_core.store.relays import relay_id

log = logging.getLogger("outbox.reaper")

CHUNK_CLAIMS = 1000


class ReapReport(NamedTuple):
    reaped: int
    dead: int

    def __add__(self, other: object) -> "ReapReport":
        assert isinstance(other, ReapReport)
        return ReapReport(self.reaped + other.reaped, self.dead + other.dead)


class Reaper:
    def __init__(self, conn: Connection, relay: int, settings: RelaySettings) -> None:
        self._conn = conn
        self._name, self._lease = settings.name, settings.lease
        self._policy: Retry = settings.retry.policy()
        self._ordered = settings.ordering == "Key"
        self._blocks = self._ordered and settings.on_dead == "Block"
        self._deliveries = Deliveries(conn, relay, settings.name, settings.owner, settings.lease)
        self._lanes = Lanes(conn, relay, settings.owner, settings.lease)

    def reap(self) -> ReapReport:
        if ended := end_frozen(self._conn, self._name, self._lease):
            log.warning(
                "ended %d sessions whose relay process stopped in the middle of a transaction",
                ended,
                extra={"event": "frozen"},
            )
        total = self._take_over()  # also without ordering: it may have been changed recently
        while True:
            with translated(), self._conn.transaction():
                chunk = self._take_back(self._deliveries.overdue(CHUNK_CLAIMS))
            total += chunk
            if chunk.reaped < CHUNK_CLAIMS:
                return total

    def _take_over(self) -> ReapReport:
        """Take over all claims and lanes of holders whose lease has expired, at once."""
        total = ReapReport(0, 0)
        with translated(), self._conn.transaction():
            for token, owner in self._lanes.expired():
                lanes = self._lanes.held(token)
                # All claims, not a chunk: a lane is free only when nothing in it is claimed.
                total += self._take_back(self._deliveries.overdue(1_000_000, lanes))
                self._lanes.leave(token)
                log.warning(
                    "the lease of %s has expired: its %d lanes are free",
                    owner,
                    len(lanes),
                    extra={"event": "takeover"},
                )
            self._lanes.free_orphans()
        return total

    def _take_back(self, claims: Sequence[Claim]) -> ReapReport:
        judged = sorted(
            ((c, judge_crash(c, self._policy, random.random())) for c in claims),
            key=lambda pair: pair[0].seq,
        )
        verdicts = [v for _, v in judged]
        if self._ordered:
            verdicts = with_holds(judged, self._blocks)
        dead = self._deliveries.take_back(verdicts)
        if claims:
            dead_ids = [c.event_id for c, v in judged if v.state is State.DEAD]
            log.warning(
                "took back %d expired claims, %d events are dead",
                len(claims),
                dead,
                extra={
                    "event": "reaped",
                    "event_ids": [c.event_id for c in claims[:MOST_LOGGED_IDS]],
                    "dead_event_ids": dead_ids[:MOST_LOGGED_IDS],
                },
            )
        return ReapReport(len(claims), dead)


def reap_once(settings: RelaySettings) -> ReapReport:
    store = settings.store
    with connect(
        store.dsn.read("store.dsn"),
        f"outbox-reap {settings.name}",
        store.connect_timeout.total_seconds(),
        settings.statement_timeout.total_seconds(),
    ) as conn:
        require_current(conn)
        relay = relay_id(conn, settings.name)
        if relay is None:
            raise RelayUnknown(
                f"no relay named {settings.name!r} is registered in this database: "
                "it registers when `outbox-relay run` first starts; check the name in the config"
            )
        return Reaper(conn, relay, settings).reap()

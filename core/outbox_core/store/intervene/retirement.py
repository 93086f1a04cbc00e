"""
Retirement: ends a relay permanently, and drops the events that wait for it.

Called by `cli` (`retire`). Three steps, each of which may be repeated: wait until no process works
for it; mark it as retired, in the audit, so that it gets nothing new; drop what waits for it, in
batches, until no transaction is left that could add to it. The database enforces the rules, and
gives the reasons: `schema/functions/retirement.sql`.
"""

import time
from collections.abc import Callable
from datetime import timedelta
from typing import NamedTuple

from psycopg.types.json import Jsonb

from outbox_core.errors import SchemaMissing, SettingsError
from outbox_core.store.connection import Connection, translated
from outbox_core.store.inspect.backlog import backlog
from outbox_core.store.reading import fetch

BATCH_ROWS = 10_000
"""Per transaction: a fraction of a second, so that nobody waits for its locks."""
CHECK_EVERY_SECONDS = 0.2

FIND = "SELECT id FROM outbox.relay WHERE name = %(relay)s AND retirement IS NULL"

# Relays that had this name, from the audit: a retired relay has another name.
RETIRED = """
    SELECT r.id FROM outbox.relay r JOIN outbox.audit a ON a.id = r.retirement
     WHERE a.relay = %(relay)s ORDER BY r.id
"""

AT_WORK = "SELECT outbox.at_work(%(id)s) AS owners"

MARK = "SELECT outbox.retire_relay(%(relay)s, %(actor)s, %(reason)s) AS id"

DROP = "SELECT dropped, lane, seq FROM outbox.drop_waiting(%s, %s, %s::smallint, %s)"

IN_FLIGHT = """
    SELECT EXISTS (SELECT 1 FROM outbox.delivery
                    WHERE relay_id = ANY (%(ids)s) AND state = 'CLAIMED')
           OR EXISTS (SELECT 1 FROM outbox.batch WHERE relay_id = ANY (%(ids)s))
           OR EXISTS (SELECT 1 FROM outbox.delivery  -- about to be claimed
                       WHERE relay_id = ANY (%(ids)s) AND state = 'PENDING' AND hold = 'NONE')
           AS there
"""

# Every transaction that may not have seen the mark has an id below ours, unless it has an old
# snapshot and has written nothing yet: what such a transaction adds is dropped by a later run.
OUR_XID = "SELECT pg_current_xact_id()::text::bigint AS xid"
HORIZON = "SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint AS xid"

AUDIT = """
    INSERT INTO outbox.audit (actor, action, relay, reason, before, after)
    VALUES (%(actor)s, 'drop', %(relay)s, %(reason)s, %(before)s, %(after)s)
"""


class Retirement(NamedTuple):
    status: str
    """done, planned (a dry run), unchanged, or unfinished: run it again."""
    relay: str
    dropped: int
    """Waiting deliveries; in a dry run, those that would be dropped."""
    approximate: bool
    dead: int
    """Dead deliveries; they stay on record, like published ones."""
    detail: str


class Retiring:
    """One relay, retired by one person, for one reason, over one connection."""

    def __init__(
        self,
        conn: Connection,
        relay: str,
        actor: str,
        reason: str,
        progress: Callable[[int], None] = lambda dropped: None,
    ) -> None:
        if not reason.strip():
            raise SettingsError("a reason is required: the audit records it")
        self._conn = conn
        self._about = {"relay": relay, "actor": actor, "reason": reason.strip()}
        self._relay = relay
        self._progress = progress

    def plan(self) -> Retirement:
        """What would happen; changes nothing."""
        with translated():
            found = fetch(self._conn, FIND, self._about)
        if not found:
            return self._result("unchanged", 0, detail="no such relay is registered")
        seen = backlog(self._conn, found[0]["id"])
        busy = self._at_work(found[0]["id"])
        detail = f"refused while it is running: {', '.join(busy)}" if busy else "it is idle"
        waiting = seen.pending + seen.claimed
        return Retirement("planned", self._relay, waiting, seen.approximate, seen.dead, detail)

    def carry_out(self, wait: timedelta) -> Retirement:
        """`wait`: how long to wait for processes that drain, and for earlier transactions."""
        until = time.monotonic() + wait.total_seconds()
        try:
            with translated():
                found = fetch(self._conn, FIND, self._about)
                before = fetch(self._conn, RETIRED, self._about)
        except SchemaMissing:  # no relay has ever started here
            return self._result("unchanged", 0, detail="this database has no outbox")
        dead = 0
        if found:
            dead = backlog(self._conn, found[0]["id"]).dead
            self._mark(found[0]["id"], until)
        elif not before:
            return self._result("unchanged", 0, detail="no such relay is registered")
        with translated():
            ids = [row["id"] for row in fetch(self._conn, RETIRED, self._about)]
            dropped, is_over = self._drop_all(ids, until)
            if dropped:
                waited = Jsonb({"state": f"{dropped} PENDING", "count": dropped})
                gone = Jsonb({"state": "gone", "relay_ids": ids})
                self._conn.execute(AUDIT, {**self._about, "before": waited, "after": gone})
        if not is_over:
            return self._result(
                "unfinished",
                dropped,
                dead,
                "events of it are in flight, or a transaction that began before is still open: "
                "run it again when they have ended",
            )
        if not found and not dropped:
            return self._result("unchanged", 0, detail="it is already retired")
        return self._result("done", dropped, dead, "nothing waits for it any more")

    def _mark(self, relay_id: int, until: float) -> None:
        """The database refuses it while a process works for the relay; it may drain until then."""
        while self._at_work(relay_id) and time.monotonic() < until:
            time.sleep(CHECK_EVERY_SECONDS)
        with translated():
            fetch(self._conn, MARK, self._about)

    def _at_work(self, relay_id: int) -> list[str]:
        with translated():
            return fetch(self._conn, AT_WORK, {"id": relay_id})[0]["owners"] or []

    def _drop_all(self, ids: list[int], until: float) -> tuple[int, bool]:
        """How many were dropped, and whether no more can come."""
        xid = fetch(self._conn, OUR_XID)[0]["xid"]
        total = 0
        while True:
            settled = fetch(self._conn, HORIZON)[0]["xid"] >= xid  # read before dropping
            for relay_id in ids:
                total += self._drop(relay_id)
            settled = settled and not fetch(self._conn, IN_FLIGHT, {"ids": ids})[0]["there"]
            if settled or time.monotonic() >= until:
                return total, settled
            time.sleep(CHECK_EVERY_SECONDS)

    def _drop(self, relay_id: int) -> int:
        total, lane, seq = 0, -2, 0  # before the first lane
        while True:
            row = self._conn.execute(DROP, (relay_id, BATCH_ROWS, lane, seq)).fetchone()
            assert row is not None
            dropped, lane, seq = map(int, row)
            total += dropped
            if dropped == 0:
                return total
            self._progress(dropped)

    def _result(self, status: str, dropped: int, dead: int = 0, detail: str = "") -> Retirement:
        return Retirement(status, self._relay, dropped, False, dead, detail)

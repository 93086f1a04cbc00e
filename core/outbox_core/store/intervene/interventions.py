"""
Interventions: what a person does to an event by hand, within the lifecycle, and audited.

Called by `cli`. One event is one transaction: the delivery is locked, checked, changed and recorded
in outbox.audit, or nothing happens. `intervene.moves` decides what is allowed; the database
enforces its own rules in addition.
"""

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import UUID, uuid4

from psycopg import errors as pg
from psycopg.types.json import Jsonb

from outbox_core.errors import RequestRefused, SettingsError
from outbox_core.model.lifecycle import Hold, State
from outbox_core.store.connection import Connection, translated
from outbox_core.store.intervene.moves import (
    Move,
    Target,
    plan_death,
    plan_replay,
    plan_reschedule,
    plan_retry,
    plan_skip,
    which_relay,
)
from outbox_core.store.reading import Row, fetch

LOCK_TIMEOUT = "2s"
"""For a row that a relay is claiming at this moment: that takes milliseconds."""
MOST_TRIES = 3
"""If somebody else changes it while we judge it."""


class Changed(Exception):
    """It is not what was judged any more."""


class Result(NamedTuple):
    event_id: UUID
    relay: str | None
    status: str
    """done, planned (a dry run), unchanged or refused."""
    detail: str
    warnings: list[str]
    before: Row | None = None
    after: Row | None = None


Planner = Callable[[Target], Move]

IN_SEQ_ORDER = "SELECT e.event_id FROM outbox.event e WHERE e.event_id = ANY (%s) ORDER BY e.seq"

# With ordering, a claim first reads a key's events and then takes them: in between, the first of
# them must not leave the line, or the second would be sent before it. So claims from this lane have
# to wait: a claim locks its holder row, and the lane cannot change hands.
LANES = """
    SELECT l.token FROM outbox.event e CROSS JOIN outbox.relay r
      JOIN outbox.lane l ON l.relay_id = r.id
       AND l.lane = outbox.delivery_lane(true, e.ordering_key, e.seq)
     WHERE e.event_id = %(event_id)s AND r.name = coalesce(%(relay)s, r.name)
       AND r.ordering = 'Key' AND EXISTS (SELECT 1 FROM outbox.delivery_of(r.id, e.seq))
       FOR SHARE OF l
"""
HOLDERS = "SELECT 1 FROM outbox.holder WHERE token = ANY (%s) ORDER BY token FOR UPDATE"

LOCK = """
    SELECT r.id FROM outbox.event e CROSS JOIN outbox.relay r
      JOIN outbox.delivery d ON d.relay_id = r.id AND d.seq = e.seq
     WHERE e.event_id = %(event_id)s AND r.name = coalesce(%(relay)s, r.name)
       FOR UPDATE OF d
"""

# After LOCK, in a snapshot of its own. An event that was claimed or published together with others
# has no row in outbox.delivery (`own`), and no lane in delivery_of(): it is shown as the row that
# it would have there. It is not locked, because only a replay changes it, which the database does
# for one of two that try.
READ = """
    SELECT r.id, e.seq, r.name, r.active, r.ordering = 'Key', e.ordering_key, d.state, d.hold,
           coalesce(d.available_at <= now(), true), coalesce(d.lease_until < now(), false),
           d.claimed_by, d.attempts - d.attempts_base, e.max_attempts,
           to_char(coalesce(d.published_at, d.previous_published_at) AT TIME ZONE 'UTC',
                   'YYYY-MM-DD HH24:MI:SS') || ' UTC',
           (SELECT format('%%s (%%s%%s)', w.event_id, h.state,
                          CASE h.hold WHEN 'TIME' THEN ', due ' || h.available_at
                                      WHEN 'DEAD' THEN ', blocks its key' ELSE '' END)
              FROM outbox.delivery h JOIN outbox.event w ON w.seq = h.seq
             WHERE d.hold = 'KEY' AND h.relay_id = r.id AND h.key_hash = own.key_hash
               AND h.hold <> 'NONE' AND h.seq < d.seq
             ORDER BY h.seq LIMIT 1),
           -- Only of what may be replayed, and only the next ten thousand events of a key are read:
           -- the result is a warning.
           CASE WHEN d.state IN ('PUBLISHED', 'DEAD') THEN
               (SELECT count(*) FROM (
                    SELECT l.state FROM outbox.event later, LATERAL (
                               SELECT o.state FROM outbox.delivery_of(r.id, later.seq) o LIMIT 1) l
                     WHERE later.ordering_key = e.ordering_key AND later.seq > e.seq
                     LIMIT 10000) k WHERE k.state = 'PUBLISHED')
           ELSE 0 END,
           coalesce(to_jsonb(own), to_jsonb(jsonb_populate_record(
               NULL::outbox.delivery, to_jsonb(d) || jsonb_build_object(
                   'available_at', least(coalesce(e.available_at, e.created_at),
                                         d.claimed_at, d.published_at),
                   'key_hash', outbox.delivery_key(r.ordering = 'Key', e.ordering_key),
                   'lane', outbox.delivery_lane(r.ordering = 'Key', e.ordering_key, e.seq),
                   'bytes', outbox.bytes_of(e.payload, e.headers))))),
           own.relay_id
      FROM outbox.event e CROSS JOIN outbox.relay r
      CROSS JOIN LATERAL outbox.delivery_of(r.id, e.seq) d
      LEFT JOIN outbox.delivery own ON own.relay_id = d.relay_id AND own.seq = d.seq
     WHERE e.event_id = %(event_id)s AND r.name = coalesce(%(relay)s, r.name)
"""

AUDIT = """
    INSERT INTO outbox.audit (actor, action, relay, event_id, seq, reason, before, after)
    SELECT %(actor)s, %(action)s, %(relay)s, %(event_id)s, d.seq, %(reason)s, %(before)s,
           to_jsonb(d)
      FROM outbox.delivery d WHERE d.relay_id = %(relay_id)s AND d.seq = %(seq)s
    RETURNING after
"""


class Interventions:
    """Actions of one person, for one reason, over one connection."""

    def __init__(self, conn: Connection, actor: str, reason: str, dry_run: bool = False) -> None:
        if not reason.strip():
            raise SettingsError("a reason is required: the audit records it")
        self._conn = conn
        self._actor = actor
        self._reason = reason.strip()
        self._dry_run = dry_run

    def retry(self, events: Iterable[UUID], relay: str | None = None) -> list[Result]:
        """Make waiting events due now."""
        return self._each("retry", events, relay, plan_retry)

    def reschedule(
        self,
        events: Iterable[UUID],
        at: datetime | None = None,
        delay: timedelta | None = None,
        relay: str | None = None,
    ) -> list[Result]:
        """Make PENDING events due at a time, or after a delay, by the database's clock."""
        return self._each(
            "reschedule", events, relay, lambda target: plan_reschedule(target, at, delay)
        )

    def declare_dead(
        self, events: Iterable[UUID], relay: str | None = None, hold_key: bool = False
    ) -> list[Result]:
        """PENDING events are never published. Their keys continue, unless `hold_key`."""
        return self._each(
            "declare-dead", events, relay, lambda t: plan_death(t, self._reason, hold_key)
        )

    def replay(
        self, events: Iterable[UUID], relay: str | None = None, keep_attempts: bool = False
    ) -> list[Result]:
        """Publish DEAD or PUBLISHED events again, with a fresh budget of attempts."""
        replay_id = f"manual-{uuid4().hex[:12]}"
        return self._each(
            "replay", events, relay, lambda target: plan_replay(target, replay_id, keep_attempts)
        )

    def skip(self, events: Iterable[UUID], relay: str | None = None) -> list[Result]:
        """A dead event stays dead, and its key continues without it."""
        return self._each("skip", events, relay, plan_skip)

    def _each(
        self, action: str, events: Iterable[UUID], relay: str | None, planner: Planner
    ) -> list[Result]:
        with translated():
            wanted = list(dict.fromkeys(events))
            found = [row[0] for row in self._conn.execute(IN_SEQ_ORDER, (wanted,))]
        unknown = [e for e in wanted if e not in set(found)]
        # In the order of their seq, so that a key's events come back in order.
        return [
            *(self._one(action, event_id, relay, planner) for event_id in found),
            *(Result(e, relay, "refused", "there is no such event", []) for e in unknown),
        ]

    def _one(self, action: str, event_id: UUID, relay: str | None, planner: Planner) -> Result:
        def refused(why: str) -> Result:
            return Result(event_id, relay, "refused", why, [])

        try:
            with translated():
                for _ in range(MOST_TRIES):
                    try:
                        with self._conn.transaction():
                            return self._locked(action, event_id, relay, planner)
                    except pg.LockNotAvailable:
                        return refused("it is being claimed or changed right now: try again")
                    # And the transaction is undone: judged again, as it is now.
                    except (Changed, pg.SerializationFailure):
                        continue
        except RequestRefused as error:
            return refused(str(error))
        return refused("it changed meanwhile: try again")

    def _locked(self, action: str, event_id: UUID, relay: str | None, planner: Planner) -> Result:
        self._conn.execute(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'")
        targets = self._lock(event_id, relay)
        if len(targets) != 1:
            raise RequestRefused(which_relay([t.relay for t in targets], relay))
        (target,) = targets
        plan = planner(target)
        if plan.refusal:
            return Result(event_id, target.relay, "refused", plan.refusal, [], target.before)
        return self._carry_out(action, event_id, target, plan)

    def _lock(self, event_id: UUID, relay: str | None) -> list[Target]:
        asked = {"event_id": event_id, "relay": relay}
        if tokens := [row[0] for row in self._conn.execute(LANES, asked) if row[0] is not None]:
            self._conn.execute(HOLDERS, (tokens,))
        locked = {row[0] for row in self._conn.execute(LOCK, asked)}
        rows = self._conn.execute(READ, asked).fetchall()
        if not {row[-1] for row in rows} <= {None, *locked}:  # it got a row in between
            raise Changed
        return [Target._make((*row[:6], State(row[6]), Hold(row[7]), *row[8:-1])) for row in rows]

    def _carry_out(self, action: str, event_id: UUID, target: Target, plan: Move) -> Result:
        def result(status: str, detail: str, after: Row | None = None) -> Result:
            return Result(
                event_id, target.relay, status, detail, plan.warnings, target.before, after
            )

        if plan.unchanged:
            return result("unchanged", plan.unchanged)
        if self._dry_run:
            return result("planned", plan.detail)
        values = {
            **plan.values,
            "relay_id": target.relay_id,
            "seq": target.seq,
            "actor": self._actor,
        }
        for statement in plan.statements:
            if self._conn.execute(statement, values).rowcount != 1:
                raise Changed
        about = {
            "action": action,
            "relay": target.relay,
            "event_id": event_id,
            "reason": self._reason,
            "before": Jsonb(target.before),
        }
        (row,) = fetch(self._conn, AUDIT, {**values, **about})
        return result("done", plan.detail, row["after"])

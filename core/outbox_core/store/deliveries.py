"""
Deliveries: the only module that moves a delivery from state to state in bulk.

Called by `worker.pipeline` (claim, finalise), `worker.keeper` (renew) and `worker.reaper` (reap).
The statements are functions of the schema, which give the reasons: `schema/functions/turn.sql`,
`finish.sql`, `renew.sql`, `expire.sql`, `release.sql`.
No policy here: `model.retry` decides which outcome leads to which state.
"""

import json
from collections.abc import Sequence
from contextlib import nullcontext
from datetime import datetime, timedelta
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple

from psycopg import Cursor
from psycopg.rows import RowMaker
from psycopg.types.numeric import Int8BinaryLoader

from outbox_core.model.attempt import Verdict
from outbox_core.model.event import Claim
from outbox_core.model.lifecycle import State
from outbox_core.model.retry import give_back
from outbox_core.store.connection import Connection, translated

UNORDERED = (-1,)
"""The lane of relays that do not order."""


class Finished(NamedTuple):
    """How a batch ended: what was published, and the verdicts for the rest."""

    token: int
    published: Sequence[int]
    results: Sequence[str]
    failed: Sequence[Verdict]
    again: bool = False
    """The answer to a first try was lost: it may already have been written."""


class Wanted(NamedTuple):
    """What to claim next."""

    token: int
    """Drawn by the caller, so that it can find its claims even if the answer is lost."""
    limit: int
    lanes: Sequence[int]
    floor: int
    server: datetime | None = None
    """The server that the floor is from: on another server the floor counts as 0."""
    suspects: bool = False
    lane_limit: int = 1
    mark: bool = False
    """Also read where the sequence and the transactions are, for the watermark."""


class Mark(NamedTuple):
    """A point in time: any transaction that drew a seq up to `seq` has an id below `xid`, and every
    transaction below `horizon` has ended."""

    seq: int
    xid: int
    horizon: int
    server: datetime
    """Identifies the server: when it was started."""


class Chores(NamedTuple):
    """What has to be done besides claiming, from one query."""

    registration: dict[str, Any] | None
    """What is registered under our relay id."""
    overdue_claims: bool
    expired_holders: bool
    unmatched_events: bool
    wrong_lanes: bool
    """Inserted by a transaction that did not see the relay's ordering change."""
    events_behind: bool
    """Some wait behind an earlier event of their key."""
    small_rows: bool
    """Many rows of what was published have few members."""


class Turn(NamedTuple):
    claims: list[Claim]
    lost: list[int]
    """Claims that were taken over before we finalised them."""
    mark: Mark | None


CLAIM = "SELECT * FROM outbox.turn(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s"
IN_ORDER = ", holder => %s, lanes => %s::smallint[], lane_limit => %s"
ENDED = ", ended => %s, published => %s::bigint[], results => %s::text[]"

PUBLISHED = "SELECT * FROM outbox.finish_published(%s, %s, %s::bigint[], %s::text[])"

FAILED = "SELECT * FROM outbox.finish_failed(%s, %s, %s, %s, %s, %s, %s, %s, %s)"

RENEW = "SELECT outbox.renew(%s, %s, %s, %s)"

SWEEP = "SELECT outbox.sweep_keys(%s, %s::smallint[], %s, %s)"
FIRST_KEY = -(2**63)

MERGE = "SELECT outbox.merge_published(%s)"

EXPIRE = "SELECT event_id FROM outbox.expire(%s, %s, %s, %s::smallint[], %s, %s, %s, %s)"

# The first statement of its transaction, so that last_value is read before our own transaction id
# is assigned: any transaction that drew a seq up to it has a smaller id.
MARK = """
    SELECT CASE WHEN is_called THEN last_value ELSE 0 END, pg_current_xact_id()::text::bigint,
           pg_snapshot_xmin(pg_current_snapshot())::text::bigint, pg_postmaster_start_time()
      FROM outbox.event_seq
"""

CHORES = """
    SELECT (SELECT to_jsonb(r) FROM outbox.relay r WHERE r.id = %(relay)s),
           EXISTS (SELECT 1 FROM outbox.delivery
                    WHERE relay_id = %(relay)s AND state = 'CLAIMED' AND lease_until < now())
           OR EXISTS (SELECT 1 FROM outbox.batch
                       WHERE relay_id = %(relay)s AND lease_until < now()),
           EXISTS (SELECT 1 FROM outbox.holder WHERE relay_id = %(relay)s AND expires_at < now())
           OR EXISTS (SELECT 1 FROM outbox.lane l
                       WHERE l.relay_id = %(relay)s AND l.token IS NOT NULL
                         AND NOT EXISTS (SELECT 1 FROM outbox.holder h WHERE h.token = l.token)),
           EXISTS (SELECT 1 FROM outbox.unmatched
                    WHERE version < (SELECT max(version) FROM outbox.relay)),
           EXISTS (SELECT 1 FROM outbox.delivery
                    WHERE relay_id = %(relay)s AND state = 'PENDING' AND hold = 'NONE'
                      AND lane BETWEEN %(low)s AND %(high)s)
           OR EXISTS (SELECT 1 FROM outbox.delivery
                       WHERE relay_id = %(relay)s AND state = 'PENDING'
                         AND hold IN ('TIME', 'SUSPECT') AND available_at <= now()
                         AND lane BETWEEN %(low)s AND %(high)s)
           OR EXISTS (SELECT 1 FROM outbox.delivery  -- unordered: any that waits behind its key
                       WHERE relay_id = %(relay)s AND hold = 'KEY' AND %(low)s = 0)
           OR EXISTS (SELECT 1 FROM outbox.delivery
                       WHERE relay_id = %(relay)s AND hold = 'KEY' AND key_hash IS NULL),
           EXISTS (SELECT 1 FROM outbox.delivery WHERE relay_id = %(relay)s AND hold = 'KEY'),
           EXISTS (SELECT 1 FROM outbox.published
                    WHERE relay_id = %(relay)s AND size < 500 OFFSET 20)
"""

# Without the payload and the other columns that only a publisher needs.
CLAIMED = """
    SELECT d.seq, d.claim_token, now(), d.attempts, d.attempts_base, d.crashes, d.lane,
           e.event_id::text, e.event_type, ''::bytea, e.content_type, NULL, NULL,
           e.partition_key, e.ordering_key, e.tenant_id, e.correlation_id, e.causation_id::text,
           e.idempotency_key, e.aggregate_type, e.aggregate_id, NULL, e.created_at,
           e.max_attempts, NULL, d.age_from, false
      FROM outbox.delivery d JOIN outbox.event e ON e.seq = d.seq
     WHERE d.relay_id = %(relay)s AND d.state = 'CLAIMED'
"""

# Before the claims of others are judged one by one: those of a batch become deliveries of their
# own.
UNPACK_OVERDUE = """
    DELETE FROM outbox.batch WHERE token IN (
        SELECT token FROM outbox.batch
         WHERE relay_id = %(relay)s
           AND CASE WHEN %(lanes)s::smallint[] IS NULL THEN lease_until < now()
                    ELSE lanes && %(lanes)s END
         ORDER BY lease_until LIMIT %(batches)s
           FOR UPDATE SKIP LOCKED)
"""
MOST_UNPACKED_BATCHES = 2
"""At a time: a batch may have thousands of members."""
UNPACK = "SELECT outbox.unpack(%(token)s)"

OVERDUE = f"""{CLAIMED}
       AND CASE WHEN %(lanes)s::smallint[] IS NULL THEN d.lease_until < now()
                ELSE d.lane = ANY (%(lanes)s) END
     ORDER BY d.lease_until LIMIT %(limit)s
       FOR UPDATE OF d SKIP LOCKED
"""

# Not SKIP LOCKED: a session that has locked one of them may be putting it back right now, and its
# key waits for that.
UNDER_TOKEN = f"""{CLAIMED}
       AND d.claim_token = %(token)s
     ORDER BY d.seq
       FOR UPDATE OF d
"""


def array_of_numbers(values: Sequence[int]) -> str:
    """In PostgreSQL's array syntax; the driver's own conversion costs more than the rest of
    finalising."""
    return "{" + ",".join(map(str, values)) + "}"


def array_of_texts(values: Sequence[str]) -> str:
    joined = '","'.join(values)
    if "\\" in joined or joined.count('"') > 2 * (len(values) - 1):
        joined = '","'.join(v.replace("\\", "\\\\").replace('"', '\\"') for v in values)
    return '{"' + joined + '"}'


def claims_from(cursor: object) -> RowMaker[Claim]:
    """Makes claims of rows without calling Claim's own constructor for each."""
    return partial(tuple.__new__, Claim)


def claim_cursor(conn: Connection) -> Cursor[Claim]:
    """Its rows are claims, with times as numbers (`Moment`): in binary they are sent as such."""
    cursor = conn.cursor(row_factory=claims_from, binary=True)
    cursor.adapters.register_loader("timestamptz", Int8BinaryLoader)
    return cursor


by_seq = itemgetter(0)


def without_lost(rows: list[Claim], lost: list[int]) -> list[Claim]:
    """The claims among the rows of a turn. Claims that were lost come first, with a seq alone:
    they are added to `lost`."""
    gone = 0
    while gone < len(rows) and not rows[gone].token:  # NULL there; a token is above 0
        gone += 1
    lost += [row.seq for row in rows[:gone]]
    return rows[gone:] if gone else rows


class Deliveries:
    """One relay's deliveries, seen by one of its processes, over one connection."""

    def __init__(
        self, conn: Connection, relay: int, name: str, owner: str, lease: timedelta
    ) -> None:
        """`name` must belong to the id `relay`: otherwise nothing is claimed."""
        self._conn = conn
        self._relay = relay
        self._name = name
        self._owner = owner
        self._lease = lease

    def turn(self, done: Finished | None, wanted: Wanted | None, holder: int | None) -> Turn:
        """
        Finalise a batch and claim the next: one round trip, one transaction, one commit.

        `holder` is the token under which an ordered relay holds its lanes.
        """
        failed = done is not None and bool(done.failed)
        marked: Cursor[tuple[Any, ...]] | None = None
        ends: list[Cursor[tuple[Any, ...]]] = []
        turned: Cursor[Claim] | None = None
        # The usual round is one statement: a pipeline would double the driver's work.
        alone = wanted is not None and not failed and not wanted.mark
        with translated(), nullcontext() if alone else self._conn.pipeline():
            if wanted is not None and wanted.mark:  # first: see MARK
                marked = self._conn.execute(MARK, binary=True)
            if done is not None and failed:
                sent = self._conn.execute(FAILED, self._failures(done.failed), binary=True)
                if not done.again:  # otherwise a lost claim looks like one that we wrote ourselves
                    ends.append(sent)
            if wanted is not None:
                turned = self._send_turn(done, wanted, holder)
            elif done is not None and done.published:
                ends.append(self._conn.execute(PUBLISHED, self._published(done), binary=True))
        with translated():
            lost = [seq for cursor in ends for (seq,) in cursor]
            claims = [] if turned is None else without_lost(turned.fetchall(), lost)
            mark = None if marked is None else Mark(*(marked.fetchone() or ()))
        if holder is not None:
            claims.sort(key=by_seq)
        return Turn(claims, lost, mark)

    def _send_turn(
        self, done: Finished | None, wanted: Wanted, holder: int | None
    ) -> Cursor[Claim]:
        statement = CLAIM
        values: tuple[object, ...] = (
            self._relay,
            self._name,
            self._owner,
            wanted.token,
            wanted.limit,
            self._lease,
            wanted.floor,
            wanted.server,
            wanted.suspects,
            done is not None,
        )
        if holder is not None:
            statement += IN_ORDER
            values += (holder, list(wanted.lanes), wanted.lane_limit)
        if done is not None and done.published:
            statement += ENDED
            values += self._published(done)[1:]
        return claim_cursor(self._conn).execute(statement + ")", values)

    def _published(self, done: Finished) -> tuple[object, ...]:
        return (
            self._relay,
            done.token,
            array_of_numbers(done.published),
            array_of_texts(done.results),
        )

    def _failures(self, verdicts: Sequence[Verdict]) -> tuple[object, ...]:
        return (
            self._relay,
            [v.seq for v in verdicts],
            [v.token for v in verdicts],
            [v.state.value for v in verdicts],
            [v.hold.value for v in verdicts],
            [v.delay for v in verdicts],
            [v.refund for v in verdicts],
            [v.crashed for v in verdicts],
            [
                None
                if v.error is None
                else json.dumps({"class": v.error.kind, "code": v.error.code, "text": v.error.text})
                for v in verdicts
            ],
        )

    def renew(self, token: int, seqs: Sequence[int]) -> int:
        """Extend a claim by another lease; return how many of its events were still ours."""
        with translated():
            row = self._conn.execute(
                RENEW, (self._relay, token, list(seqs), self._lease)
            ).fetchone()
        assert row is not None
        return int(row[0])

    def expire(
        self, max_age: timedelta, lanes: Sequence[int], limit: int, floor: int, block: bool
    ) -> list[str]:
        """Declare dead what is next in line and too old; return the ids of those events."""
        with translated():
            rows = self._conn.execute(
                EXPIRE,
                (self._relay, self._name, self._owner, list(lanes), limit, floor, max_age, block),
            )
            return [str(event_id) for (event_id,) in rows]

    def chores(self, ordered: bool) -> Chores:
        low, high = UNORDERED * 2 if ordered else (0, 32_767)
        values = {"relay": self._relay, "low": low, "high": high}
        with translated():
            row = self._conn.execute(CHORES, values).fetchone()
        assert row is not None
        return Chores(*row)

    def relane(self, limit: int) -> int:
        """Move deliveries that arrived during a change of `ordering` to their lanes; return how
        many there were."""
        with translated():
            row = self._conn.execute(
                "SELECT outbox.relane(%s, %s)", (self._relay, limit)
            ).fetchone()
        assert row is not None
        return int(row[0])

    def merge(self) -> bool:
        """Merge some small rows of what was published; return whether there may be more."""
        with translated():
            row = self._conn.execute(MERGE, (self._relay,)).fetchone()
        assert row is not None
        return bool(row[0])

    def overdue(self, limit: int, lanes: Sequence[int] | None = None) -> list[Claim]:
        """Claims whose lease has expired, or all claims in these lanes. Locked until the caller's
        transaction ends, so that each is judged once."""
        chosen = None if lanes is None else list(lanes)
        with translated():
            values = {"relay": self._relay, "lanes": chosen, "limit": limit}
            batches = MOST_UNPACKED_BATCHES if lanes is None else None
            self._conn.execute(UNPACK_OVERDUE, values | {"batches": batches})
            return claim_cursor(self._conn).execute(OVERDUE, values).fetchall()

    def recover(self, token: int) -> int:
        """
        Give back what was claimed under a token of ours whose claim was never answered; return how
        many.

        With ordering, only after the lost connection was fenced off (`Lanes.fence`): until then it
        may still claim.
        """
        with translated(), self._conn.transaction():
            values = {"relay": self._relay, "token": token}
            self._conn.execute(UNPACK, values)
            lost = claim_cursor(self._conn).execute(UNDER_TOKEN, values).fetchall()
            self.take_back([give_back(c) for c in lost])
            return len(lost)

    def take_back(self, verdicts: Sequence[Verdict]) -> int:
        """Write the verdicts on claims of others; return how many of them are dead."""
        if verdicts:
            with translated():
                self._conn.execute(FAILED, self._failures(verdicts))
        return sum(v.state is State.DEAD for v in verdicts)

    def sweep_keys(self, lanes: Sequence[int], after: int | None, limit: int) -> int | None:
        """Release keys in these lanes that no longer wait for anything, at most `limit` of them,
        starting after `after` (None: from the first). Return where to continue, None after the
        last."""
        start = FIRST_KEY if after is None else after
        with translated():
            row = self._conn.execute(SWEEP, (self._relay, list(lanes), start, limit)).fetchone()
        assert row is not None
        return None if row[0] is None else int(row[0])

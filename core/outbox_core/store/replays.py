"""
Bulk replays: begin, plan, take chunk after chunk, read the progress, finish or stop.

Called by the driver and the tasks of `outbox_spark`. Every step may be repeated, by any process and
at the same time: `begin` finds what exists, `plan` plans once, and the ledger has each chunk once.
The database enforces the rules, and gives the reasons: `schema/functions/replay_take.sql`.
"""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, cast

from psycopg import errors as pg
from psycopg import sql
from psycopg.types.json import Jsonb

from outbox_core.contract.replay import ReplaySettings
from outbox_core.errors import RequestRefused, TooManyEvents
from outbox_core.store.connection import Connection, translated
from outbox_core.store.inspect.backlog import oldest_pending_seconds
from outbox_core.store.reading import Row, fetch
from outbox_core.store.replay_preview import preview as preview
from outbox_core.store.replay_selection import (
    as_asked,
    check_selection,
    find_relay,
    is_narrow,
    matching,
)


class Known(NamedTuple):
    relay_id: int
    ordered: bool
    planned: bool
    finished: bool
    matched: int | None


class Taken(NamedTuple):
    outcome: Literal["taken", "wait", "busy", "done"]
    """busy: others have the chunks that are next; done: nothing is left."""
    replayed: int = 0
    skipped: int = 0
    because: Mapping[str, int] = {}
    """How many were skipped, by their actual state."""
    wait: float = 0.0
    """Seconds to wait, to keep the pace."""


class Progress(NamedTuple):
    matched: int | None
    """None until the plan is made."""
    replayed: int
    skipped: int
    because: Mapping[str, int]
    chunks: int
    chunks_done: int
    pace: float


def chunk_rows(rate: int) -> int:
    """The events of a twentieth of a second: a chunk is given back at once, and must not delay live
    events. Not so few that every event costs a commit, nor so many that a chunk takes seconds."""
    return min(max(rate // 20, 50), 5000)


BEGIN = """
    INSERT INTO outbox.replay (id, relay_id, action, states, reset_attempts, rate, chunk_rows,
                               request, reason, requested_by, pace)
    VALUES (%(id)s, %(relay_id)s, %(action)s, %(states)s::outbox.state[], %(reset_attempts)s,
            %(rate)s, %(chunk_rows)s, %(request)s, %(reason)s, %(requested_by)s, %(rate)s)
    ON CONFLICT DO NOTHING
"""
RESUME = """
    UPDATE outbox.replay SET stopped_at = NULL
     WHERE id = %(id)s AND stopped_at IS NOT NULL AND finished_at IS NULL
"""
READ = "SELECT * FROM outbox.replay WHERE id = %(id)s"
LOCK = READ + " FOR UPDATE"


def begin(conn: Connection, settings: ReplaySettings) -> Known:
    """Record the replay, or find what earlier attempts did. A dry run records nothing."""
    relay = find_relay(conn, settings.relay)
    check_selection(conn, settings)
    if settings.dry_run:
        return Known(relay.id, relay.ordered, planned=False, finished=False, matched=None)
    rate = settings.rate.events_per_second
    values = {
        "id": settings.id,
        "relay_id": relay.id,
        "action": settings.action,
        "states": list(settings.states) if settings.action == "Requeue" else [],
        "reset_attempts": settings.reset_attempts,
        "rate": rate,
        "chunk_rows": chunk_rows(rate),
        "request": Jsonb(as_asked(settings)),
        "reason": settings.reason,
        "requested_by": settings.requested_by,
    }
    with translated(), conn.transaction():
        conn.execute(BEGIN, values)
        conn.execute(RESUME, values)
        (found,) = fetch(conn, READ, values)
    if found["relay_id"] != relay.id:
        raise RequestRefused(
            f"replay {settings.id} began on a relay {settings.relay!r} that has been retired "
            "since: create another OutboxReplay for the current one"
        )
    return Known(
        relay.id,
        relay.ordered,
        planned=found["planned_at"] is not None,
        finished=found["finished_at"] is not None,
        matched=found["matched"],
    )


# This transaction sorts what it selects: it may take long and involve many rows.
TO_PLAN = """
    SET LOCAL statement_timeout = 0; SET LOCAL jit = off; SET LOCAL work_mem = '64MB';
    SET LOCAL enable_seqscan = {planner}
"""

# One statement, hence one snapshot: it selects what existed at one moment. In strands (bands of
# keys, or one for all) and pieces of a limited range of seqs, which bound the memory that it needs.
FREEZE = sql.SQL("""
    WITH made AS (
        INSERT INTO outbox.replay_chunk (replay_id, band, n, size, first_seq, seqs)
        SELECT %(id)s, {band}, {n}, cardinality(c.seqs), c.seqs[1], c.seqs
          FROM (SELECT p.strand, p.seqs,
                       row_number() OVER (PARTITION BY p.strand ORDER BY p.seqs[1]) - 1 AS k
                  FROM (SELECT a.strand, a.seqs[i + 1 : i + %(chunk_rows)s] AS seqs
                          FROM (SELECT m.strand, array_agg(m.seq ORDER BY m.seq) AS seqs
                                  FROM (SELECT {seq}, {strand} AS strand {matching}
                                         LIMIT %(most)s) m
                                 GROUP BY m.strand, m.seq >> 24) a,
                               generate_series(0, cardinality(a.seqs) - 1, %(chunk_rows)s) i
                        OFFSET 0) p) c  -- otherwise whole strands are sorted, not their pieces
        RETURNING size, seqs[size] AS last)
    SELECT coalesce(sum(size), 0)::bigint AS matched, count(*) AS chunks, max(last) AS upper_seq
      FROM made
""")
BY_KEY = {"band": sql.SQL("c.strand"), "n": sql.SQL("c.k")}
BY_SEQ = {
    "band": sql.SQL("c.k %% outbox.lanes()"),
    "n": sql.SQL("c.k / outbox.lanes()"),
    "strand": sql.SQL("0"),
}
BANDS_BY_KEY = 4
"""Keys of different bands come back at the same time. Two tasks keep a database busy; and each
band has members in the same rows of outbox.published, which it rewrites: with 8 bands instead of 4,
a fifth fewer events come back per second."""
# By the current ordering; the event is only read if the delivery is from before it, or if it has no
# row of its own.
BAND = sql.SQL("""
    CASE WHEN d.lane >= 0 THEN d.lane
         ELSE (SELECT outbox.delivery_lane(true, k.ordering_key, k.seq)
                 FROM outbox.event k WHERE k.seq = d.seq) END %% {}
""").format(sql.Literal(BANDS_BY_KEY))
BAND_OF_EVENT = sql.SQL("outbox.delivery_lane(true, e.ordering_key, e.seq) %% {}").format(
    sql.Literal(BANDS_BY_KEY)
)

PLANNED = """
    UPDATE outbox.replay SET by_key = %(by_key)s, upper_seq = %(upper_seq)s,
           matched = %(matched)s, chunks = %(chunks)s, planned_at = now(), next_at = now()
     WHERE id = %(id)s
"""

AUDIT = """
    INSERT INTO outbox.audit (actor, action, relay, reason, before, after)
    SELECT coalesce(p.requested_by, 'unknown'), %(action)s, r.name, p.reason,
           jsonb_build_object('replay', p.id, 'request', p.request, 'state', %(was)s::text),
           jsonb_build_object('replay', p.id, 'matched', p.matched, 'replayed', p.replayed,
                              'skipped', p.skipped, 'state', %(became)s::text)
      FROM outbox.replay p JOIN outbox.relay r ON r.id = p.relay_id WHERE p.id = %(id)s
"""


def plan(conn: Connection, settings: ReplaySettings, known: Known) -> int:
    """Freeze the selection into chunks, once; return how many events match."""
    planner = "off" if is_narrow(settings) else "on"
    with translated(), conn.transaction():
        (found,) = fetch(conn, LOCK, {"id": settings.id})
        if found["planned_at"] is not None:
            return int(found["matched"])
        conn.execute(TO_PLAN.format(planner=planner))
        most = settings.max_events
        source, values = matching(conn, settings, known.relay_id)
        values |= {
            "id": settings.id,
            "chunk_rows": found["chunk_rows"],
            # one more shows that there are too many; counting all of them would take too long
            "most": None if most is None else most + 1,
            "by_key": known.ordered,
        }
        of_events = settings.action == "Backfill"
        band = {"strand": BAND_OF_EVENT if of_events else BAND}
        cut = {**band, **BY_KEY} if known.ordered else BY_SEQ
        seq = sql.SQL("e.seq" if of_events else "d.seq")
        (made,) = fetch(conn, FREEZE.format(**cut, seq=seq, matching=source), values)
        if most is not None and made["matched"] > most:
            raise TooManyEvents(
                f"more than {most} events match (maxEvents): nothing was changed; narrow the "
                "selection or raise maxEvents; dryRun shows how many there are"
            )
        conn.execute(PLANNED, values | made)
        _audit(conn, settings.id, "replay-begin", "requested", f"{made['matched']} planned")
    return int(made["matched"])


TAKE = "SELECT outcome, replayed, skipped, wait FROM outbox.replay_take(%s, %s)"


def take(conn: Connection, replay_id: str, worker: str) -> Taken:
    """Do the next chunk, completely or not at all."""
    with translated():
        try:
            row = conn.execute(TAKE, (replay_id, worker)).fetchone()
        except pg.LockNotAvailable:  # another session has locked one of its rows for seconds
            return Taken("busy")
        except pg.SerializationFailure:  # an event of it has just been moved: the chunk is undone
            return Taken("busy")
    assert row is not None
    outcome, replayed, because, wait = row
    return Taken(outcome, replayed, sum(because.values()), because, wait)


def progress(conn: Connection, replay_id: str) -> Progress:
    with translated():
        (found,) = fetch(conn, READ, {"id": replay_id})
    return Progress(
        found["matched"],
        found["replayed"],
        sum(found["skipped"].values()),
        found["skipped"],
        found["chunks"] or 0,
        found["chunks_done"],
        found["pace"],
    )


def live_age(conn: Connection, relay_id: int) -> float:
    """For how many seconds the oldest due event has been due."""
    return oldest_pending_seconds(conn, relay_id)


# The remaining wait after the last chunk is shortened or extended accordingly.
SET_PACE = """
    UPDATE outbox.replay r SET pace = %(pace)s,
           next_at = now() + greatest(r.next_at - now(), interval '0') * (r.pace / %(pace)s)
     WHERE r.id = %(id)s AND r.pace <> %(pace)s
"""


def set_pace(conn: Connection, replay_id: str, pace: float) -> None:
    """Set the pace, in events per second, from now on."""
    with translated():
        conn.execute(SET_PACE, {"id": replay_id, "pace": pace})


FORGET = "SELECT outbox.forget_plans(%s)"
CHUNKS_PER_TRANSACTION = 100
"""At most 4 MB of the plan are deleted per transaction, so that the end of a large replay causes no
burst."""

FINISHED = "UPDATE outbox.replay SET finished_at = now(), stopped_at = NULL WHERE id = %(id)s"
STOPPED = "UPDATE outbox.replay SET stopped_at = now() WHERE id = %(id)s"


def finish(conn: Connection, replay_id: str) -> None:
    """Mark the replay as done, permanently. Refused while something is left. Its plan is deleted,
    and those of other finished replays whose driver died before it did so."""
    _finish(conn, replay_id)
    with translated():
        while (row := conn.execute(FORGET, (CHUNKS_PER_TRANSACTION,)).fetchone()) and row[0]:
            pass


def _finish(conn: Connection, replay_id: str) -> None:
    with translated(), conn.transaction():
        (found,) = fetch(conn, LOCK, {"id": replay_id})
        if found["finished_at"] is not None:
            return
        if found["chunks_done"] != found["chunks"]:
            raise RequestRefused(
                f"replay {replay_id} is not done: only "
                f"{found['chunks_done']} of {found['chunks']} chunks are"
            )
        conn.execute(FINISHED, {"id": replay_id})
        _audit(conn, replay_id, "replay-end", *_change(found))


def stop(conn: Connection, replay_id: str, why: str = "") -> bool:
    """Record that nobody is working on it, and what went wrong, if anything; what is done stays
    done, and no task adds to it from now on. False: there is no such replay."""
    with translated(), conn.transaction():
        rows = fetch(conn, LOCK, {"id": replay_id})
        if rows and rows[0]["finished_at"] is None and rows[0]["stopped_at"] is None:
            conn.execute(STOPPED, {"id": replay_id})
            was, became = _change(rows[0])
            _audit(conn, replay_id, "replay-stop", was, f"{became}: {why}" if why else became)
    return bool(rows)


def _change(found: Row) -> tuple[str, str]:
    skipped = cast("dict[str, int]", found["skipped"])
    return (
        f"{found['matched'] or 0} planned",
        f"{found['replayed']} replayed, {sum(skipped.values())} skipped",
    )


def _audit(conn: Connection, replay_id: str, action: str, was: str, became: str) -> None:
    values: dict[str, Any] = {"id": replay_id, "action": action, "was": was, "became": became}
    conn.execute(AUDIT, values)

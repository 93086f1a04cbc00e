"""
The backlog: how many events wait, for how long, and the most frequent errors; cheap at any size.

Called by `worker.reporting` for /status and /metrics every few seconds, and by `cli` (`counts`).
Exact up to MOST_COUNTED_ROWS per kind. Above that the rows' positions (seq) are sampled: the range
is split into pieces, and the range of a piece's first m rows shows how densely it is filled.
"""

import re
from collections import Counter, defaultdict
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from psycopg import sql

from outbox_core.store.connection import Connection, translated
from outbox_core.store.lanes import LANES

MOST_COUNTED_ROWS = 10_000
"""If there are more of a kind, their number is estimated."""
SAMPLED_ROWS = 2000
"""For an estimate, in all pieces together; the error is 2 % if there are many."""
SAMPLED_ERRORS = 300
"""Deliveries per kind of trouble among which the most frequent errors are counted."""


@dataclass(frozen=True)
class ErrorGroup:
    error_class: str
    code: str
    text: str
    """The most frequent text in the group, unchanged. Errors that differ only in numbers and ids
    count as the same error."""
    count: int
    """Among the newest SAMPLED_ERRORS dead deliveries, and as many that are retried next."""


class BacklogSnapshot(NamedTuple):
    pending: int
    claimed: int
    dead: int
    oldest_pending_seconds: float
    """For how long the oldest due event has been due; 0 if there is none. Counted from the
    delivery's available_at, not from created_at: it grows only while relays are stopped or too
    slow, and does not jump after a replay of last year's events, a schedule or a backoff. Events
    behind an earlier one of their key do not count: `stuck` shows what blocks them."""
    approximate: bool
    top_errors: list[ErrorGroup]
    at: datetime
    """By the database's clock."""


class DeliveryKind(NamedTuple):
    """A kind of delivery that has an index of its own."""

    where: sql.SQL
    in_lanes: bool = False
    """An ordered relay's line is spread over its lanes; every other kind is one strand."""
    guess: sql.SQL | None = None
    """If the index is not by seq, numbers above MOST_COUNTED_ROWS come from the statistics. Without
    `state`: it follows from the hold, but the planner would treat the two as independent."""
    cap: int = MOST_COUNTED_ROWS


IN_LINE = DeliveryKind(
    sql.SQL(
        "d.relay_id = %(relay)s AND d.lane = strand.id AND d.state = 'PENDING' AND d.hold = 'NONE'"
        " AND d.seq > %(floor)s"
    ),
    in_lanes=True,
)
DUE = DeliveryKind(
    sql.SQL("d.relay_id = %(relay)s AND d.state = 'PENDING' AND d.hold IN ('TIME', 'SUSPECT')"),
    guess=sql.SQL("d.relay_id = %(relay)s AND d.hold IN ('TIME', 'SUSPECT')"),
)
BEHIND_KEY = DeliveryKind(
    sql.SQL("d.relay_id = %(relay)s AND d.hold = 'KEY'"),
    guess=sql.SQL("d.relay_id = %(relay)s AND d.hold = 'KEY'"),
)
BEING_PUBLISHED = DeliveryKind(
    sql.SQL("d.relay_id = %(relay)s AND d.state = 'CLAIMED'"),
    guess=sql.SQL("d.relay_id = %(relay)s AND d.state = 'CLAIMED'"),
    cap=100_000,  # in practice bounded by batches in flight, which the statistics do not show
)
GIVEN_UP = DeliveryKind(sql.SQL("d.relay_id = %(relay)s AND d.state = 'DEAD'"))
PUBLISHED = DeliveryKind(sql.SQL("d.relay_id = %(relay)s AND d.state = 'PUBLISHED'"))

# All of these are rows of outbox.delivery. What was claimed or published together, at the first
# attempt, is counted exactly: there is one row for hundreds of events.
IN_BATCHES = """
    SELECT coalesce(sum(cardinality(b.seqs)), 0)::bigint FROM outbox.batch b
     WHERE b.relay_id = %(relay)s
"""
PUBLISHED_TOGETHER = """
    SELECT coalesce(sum(p.size), 0)::bigint FROM outbox.published p WHERE p.relay_id = %(relay)s
"""

COUNT = sql.SQL("""
    SELECT count(*) FROM (
        SELECT 1 FROM generate_series(%(low)s::integer, %(high)s::integer) AS strand (id),
               LATERAL (SELECT 1 FROM outbox.delivery d WHERE {kind} LIMIT %(cap)s + 1) r
         LIMIT %(cap)s + 1) n
""")

# A strand's first rows show whether it needs an estimate and how large it may be; about 200 pieces
# are distributed accordingly, and in each a few rows show the density, each time at another place
# (multiples of the golden ratio spread evenly). (m - 1) / reach and not m / reach: a sample ends at
# a hit, so the latter would count too many.
ESTIMATE = sql.SQL("""
    WITH top AS MATERIALIZED (
        SELECT e.seq + 1 AS seq FROM outbox.event e ORDER BY e.seq DESC LIMIT 1
    ), head AS MATERIALIZED (
        SELECT strand.id, head.*
          FROM generate_series(%(low)s::integer, %(high)s::integer) AS strand (id),
               LATERAL (SELECT count(*) AS n, min(s.seq) AS first, max(s.seq) AS last FROM (
                            SELECT d.seq FROM outbox.delivery d WHERE {kind}
                             ORDER BY d.seq LIMIT %(head)s) s) head
    ), share AS (
        SELECT id, first, least(40, ceil(200 * size / sum(size) OVER ()))::integer AS pieces
          FROM (SELECT head.id, head.first,
                       (top.seq - head.first)::float8 / (head.last - head.first) AS size
                  FROM head, top WHERE head.n = %(head)s) large
    ), piece AS MATERIALIZED (
        SELECT id, first + (top.seq - first) * i / pieces AS low,
               first + (top.seq - first) * (i + 1) / pieces AS high,
               0.618034 * (id + i) - floor(0.618034 * (id + i)) AS offset_by,
               greatest(10, %(sample)s / sum(pieces) OVER ())::integer AS m
          FROM (SELECT share.*, i FROM share, generate_series(0, share.pieces - 1) AS i) s, top
    ), probe AS (
        SELECT id, low, high, m, low + floor((high - low) * 0.9 * offset_by)::bigint AS start
          FROM piece
    )
    SELECT coalesce((SELECT sum(n) FROM head WHERE n < %(head)s), 0)
               + coalesce(round(sum((strand.high - strand.low)::float8 * CASE
                     WHEN seen.n < strand.m THEN seen.n / (strand.high - strand.start)::float8
                     ELSE (strand.m - 1) / (seen.last - strand.start)::float8 END)), 0),
           coalesce(bool_and(strand.id IS NULL), true)
      FROM probe AS strand, LATERAL (
               SELECT count(*) AS n, max(s.seq) AS last FROM (
                   SELECT d.seq FROM outbox.delivery d
                    WHERE {kind} AND d.seq >= strand.start AND d.seq < strand.high
                    ORDER BY d.seq LIMIT strand.m) s) seen
""")

RELAY = "SELECT now(), (SELECT ordering FROM outbox.relay WHERE id = %(relay)s)"

# Rows older than the rule against infinite times may have one: they have no age.
OLDEST = sql.SQL("""
    SELECT coalesce(extract(epoch FROM now() - least(
        (SELECT min(head.available_at)
           FROM generate_series(%(low)s::integer, %(high)s::integer) AS strand (id),
                LATERAL (SELECT d.available_at FROM outbox.delivery d WHERE {line}
                          ORDER BY d.seq LIMIT 1) head
          WHERE isfinite(head.available_at)),
        (SELECT d.available_at FROM outbox.delivery d
          WHERE d.relay_id = %(relay)s AND d.state = 'PENDING' AND d.hold = 'TIME'
            AND d.available_at <= now() AND d.available_at > '-infinity'
          ORDER BY d.available_at LIMIT 1),
        (SELECT d.available_at FROM outbox.delivery d
          WHERE d.relay_id = %(relay)s AND d.state = 'PENDING' AND d.hold = 'SUSPECT'
            AND d.available_at <= now() AND d.available_at > '-infinity'
          ORDER BY d.available_at LIMIT 1))), 0)::float8
""").format(line=IN_LINE.where)

ERRORS = """
    SELECT e.last_error->>'class', e.last_error->>'code', e.last_error->>'text', count(*)
      FROM ((SELECT d.last_error FROM outbox.delivery d
              WHERE d.relay_id = %(relay)s AND d.state = 'DEAD'
              ORDER BY d.seq DESC LIMIT %(errors)s)
            UNION ALL
            (SELECT d.last_error FROM outbox.delivery d
              WHERE d.relay_id = %(relay)s AND d.state = 'PENDING' AND d.hold = 'TIME'
              ORDER BY d.available_at LIMIT %(errors)s)
            UNION ALL
            (SELECT d.last_error FROM outbox.delivery d
              WHERE d.relay_id = %(relay)s AND d.state = 'PENDING' AND d.hold = 'SUSPECT'
              ORDER BY d.available_at LIMIT %(errors)s)) e
     WHERE e.last_error IS NOT NULL GROUP BY 1, 2, 3
"""

# By index, whatever the statistics are, like the claims.
BY_INDEX = """
    SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off; SET LOCAL jit = off
"""


def backlog(conn: Connection, relay_id: int, floor: int = 0) -> BacklogSnapshot:
    """`floor`: the relay's watermark, so that dead index entries below it are not scanned."""
    with translated(), conn.transaction():
        conn.execute(BY_INDEX)
        reader = _Reader(conn, relay_id, floor)
        pending = reader.count(IN_LINE) + reader.count(DUE) + reader.count(BEHIND_KEY)
        return BacklogSnapshot(
            pending=pending,
            claimed=reader.count(BEING_PUBLISHED) + reader.sum(IN_BATCHES),
            dead=reader.count(GIVEN_UP),
            oldest_pending_seconds=reader.oldest(),
            top_errors=reader.top_errors(),
            approximate=reader.approximate,
            at=reader.at,
        )


def oldest_pending_seconds(conn: Connection, relay_id: int) -> float:
    """As in the backlog, without the rest of it."""
    with translated(), conn.transaction():
        conn.execute(BY_INDEX)
        return _Reader(conn, relay_id, 0).oldest()


def published(conn: Connection, relay_id: int) -> tuple[int, bool]:
    """How many are PUBLISHED, and whether that is an estimate."""
    with translated(), conn.transaction():
        conn.execute(BY_INDEX)
        reader = _Reader(conn, relay_id, 0)
        return reader.count(PUBLISHED) + reader.sum(PUBLISHED_TOGETHER), reader.approximate


class _Reader:
    def __init__(self, conn: Connection, relay_id: int, floor: int) -> None:
        self._conn = conn
        self.approximate = False
        self._values = {"relay": relay_id, "floor": floor, "errors": SAMPLED_ERRORS}
        self.at, ordering = self._row(RELAY)
        self._lanes = (0, LANES - 1) if ordering == "Key" else (-1, -1)

    def count(self, kind: DeliveryKind) -> int:
        if kind.guess is not None:
            return self._count_or_guess(kind)
        head = 10 if self._strands(kind)["high"] > 0 else 1000
        values = self._strands(kind) | {
            "sample": SAMPLED_ROWS,
            "head": head,
            "cap": MOST_COUNTED_ROWS,
        }
        estimate, exact = self._row(ESTIMATE.format(kind=kind.where), values)
        if exact:
            return int(estimate)
        if estimate < 1.5 * MOST_COUNTED_ROWS:
            (found,) = self._row(COUNT.format(kind=kind.where), values)
            if found <= MOST_COUNTED_ROWS:
                return int(found)
        self.approximate = True
        return max(MOST_COUNTED_ROWS, int(estimate))

    def _count_or_guess(self, kind: DeliveryKind) -> int:
        values = self._strands(kind) | {"cap": kind.cap}
        (found,) = self._row(COUNT.format(kind=kind.where), values)
        if found <= kind.cap:
            return int(found)
        self.approximate = True
        assert kind.guess is not None
        query = sql.SQL("EXPLAIN (FORMAT JSON) SELECT 1 FROM outbox.delivery d WHERE {}")
        (plan,) = self._row(query.format(kind.guess))
        return max(kind.cap, int(plan[0]["Plan"]["Plan Rows"]))

    def sum(self, query: str) -> int:
        return int(self._row(query)[0])

    def _strands(self, kind: DeliveryKind) -> dict[str, int]:
        low, high = self._lanes if kind.in_lanes else (0, 0)
        return {"low": low, "high": high}

    def _row(self, query: str | sql.Composed, values: dict[str, int] | None = None) -> Any:
        row = self._conn.execute(query, self._values | (values or {})).fetchone()
        assert row is not None
        return row

    def oldest(self) -> float:
        (seconds,) = self._row(OLDEST, self._strands(IN_LINE))
        return max(0.0, float(seconds))

    def top_errors(self, n: int = 5) -> list[ErrorGroup]:
        groups: defaultdict[tuple[str, str, str], Counter[str]] = defaultdict(Counter)
        for kind, code, text, count in self._conn.execute(ERRORS, self._values):
            groups[str(kind), str(code), fingerprint(str(text))][str(text)] += int(str(count))
        found = [
            # of equally frequent texts always the same one: it is compared, and shown
            ErrorGroup(kind, code, min(texts, key=lambda t: (-texts[t], t)), texts.total())
            for (kind, code, _), texts in groups.items()
        ]
        return sorted(found, key=lambda e: -e.count)[:n]


VARIABLE = re.compile(
    r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}"  # ids
    r"|\b0x[0-9a-fA-F]+\b|\b(?=[a-f]*[0-9])[0-9a-f]{12,}\b"  # hashes, addresses
    r"|\d+(?:\.\d+)?"
)


def fingerprint(text: str) -> str:
    """The part of an error's text that identifies the error: `offset 42` is `offset #`. For
    grouping only; people are shown the unchanged text."""
    return VARIABLE.sub("#", text)

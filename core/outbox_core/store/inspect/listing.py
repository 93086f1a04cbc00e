"""
Listing: the events that a person asked for, page by page.

Called by `cli` (`list`, `dead --list`, `trace`). A row is an event and one relay's delivery of it;
an event that no relay subscribes to has a row without a relay. Pages go by seq, not by OFFSET: the
next one costs as much as the first, and events that arrive meanwhile do not shift it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from psycopg import sql

from outbox_core.model.lifecycle import State
from outbox_core.store.connection import Connection
from outbox_core.store.reading import THE_RELAYS, Row, fetch, the_relays


@dataclass(frozen=True)
class Filter:
    """None means any. `after` is inclusive, `before` is not."""

    relay: str | None = None
    states: tuple[State, ...] = ()
    event_type: str | None = None
    tenant: str | None = None
    key: str | None = None
    correlation: str | None = None
    aggregate: tuple[str, str] | None = None
    created_after: datetime | None = None
    created_before: datetime | None = None
    published_after: datetime | None = None
    published_before: datetime | None = None
    attempts_min: int | None = None
    attempts_max: int | None = None
    error: str | None = None


@dataclass(frozen=True)
class Page:
    limit: int = 50
    after_seq: int | None = None
    before_seq: int | None = None
    oldest_first: bool = False


class Listing(NamedTuple):
    rows: list[Row]
    next_seq: int | None
    """Where the next page starts: before it (newest first) or after it (oldest first)."""


FILTERS_ON_EVENT = {
    "event_type": "e.event_type LIKE %(event_type)s",
    "tenant": "e.tenant_id = %(tenant)s",
    "key": "e.ordering_key = %(key)s",
    "correlation": "e.correlation_id = %(correlation)s",
    "aggregate": "e.aggregate_type = %(aggregate_type)s AND e.aggregate_id = %(aggregate_id)s",
    "created_after": "e.created_at >= %(created_after)s",
    "created_before": "e.created_at < %(created_before)s",
}
FILTERS_ON_DELIVERY = {
    "published_after": "d.published_at >= %(published_after)s",
    "published_before": "d.published_at < %(published_before)s",
    "attempts_min": "d.attempts >= %(attempts_min)s",
    "attempts_max": "d.attempts <= %(attempts_max)s",
    "error": "strpos(lower(concat_ws(' ', d.last_error->>'class', d.last_error->>'code',"
    " d.last_error->>'text')), lower(%(error)s)) > 0",
}

# As in the view outbox.events: an event without a delivery waits only if a relay may still get it.
STATE = sql.SQL("""
    CASE WHEN d.state IS NOT NULL THEN d.state
         WHEN EXISTS (SELECT 1 FROM outbox.unmatched w WHERE w.seq = e.seq)
         THEN 'PENDING'::outbox.state END
""")
COLUMNS = sql.SQL("""
    e.seq, e.event_id, e.event_type, e.created_at, e.tenant_id, e.ordering_key, e.aggregate_type,
    e.aggregate_id, e.correlation_id, e.causation_id, r.name AS relay,
    {state} AS state, d.hold, coalesce(d.attempts, 0) AS attempts,
    coalesce(d.attempts - d.attempts_base, 0) AS attempts_in_budget, d.available_at,
    d.claimed_by, d.claimed_at, d.lease_until, d.published_at, d.result, d.last_error, d.replay_id
""").format(state=STATE)

# Deliveries are found by (relay, seq): so those of an event are looked up relay by relay.
FROM_EVENTS = sql.SQL("""
    SELECT {columns}
      FROM outbox.event e
      LEFT JOIN ({relays} JOIN outbox.delivery d ON d.relay_id = r.id) ON d.seq = e.seq
     WHERE {where}
     ORDER BY e.seq {direction} LIMIT %(rows)s
""")

# By state: each relay's rows of a state come from that state's own small index.
FROM_STATES = sql.SQL("""
    SELECT {columns}
      FROM (SELECT r.id, r.name, line.seq
              FROM {relays} CROSS JOIN LATERAL ({branches}) line
             ORDER BY line.seq {direction} LIMIT %(rows)s) r
      JOIN outbox.delivery d ON d.relay_id = r.id AND d.seq = r.seq
      JOIN outbox.event e ON e.seq = r.seq
     {unmatched}
     ORDER BY seq {direction} LIMIT %(rows)s
""")
STATE_BRANCH = sql.SQL("""(
    SELECT d.seq FROM outbox.delivery d {event}
     WHERE d.relay_id = r.id AND {state} AND {where}
     ORDER BY d.seq {direction} LIMIT %(rows)s)
""")
IN_LINE_BRANCH = sql.SQL("""(
    SELECT d.seq
      FROM generate_series(CASE r.ordering WHEN 'Key' THEN 0 ELSE -1 END,
                           CASE r.ordering WHEN 'Key' THEN outbox.lanes() - 1 ELSE -1 END)
               AS own (lane),
           LATERAL (SELECT d.seq FROM outbox.delivery d {event}
                     WHERE d.relay_id = r.id AND d.lane = own.lane
                       AND d.state = 'PENDING' AND d.hold = 'NONE' AND {where}
                     ORDER BY d.seq {direction} LIMIT %(rows)s) d
     ORDER BY d.seq {direction} LIMIT %(rows)s)
""")
UNMATCHED_ROWS = sql.SQL("""
    UNION ALL (
    SELECT {columns}
      FROM outbox.unmatched u JOIN outbox.event e ON e.seq = u.seq
      LEFT JOIN outbox.relay r ON false LEFT JOIN outbox.delivery d ON false
     WHERE {where}
     ORDER BY u.seq {direction} LIMIT %(rows)s)
""")
STATE_CONDITIONS = {
    State.PENDING: ("d.state = 'PENDING' AND d.hold IN ('TIME', 'SUSPECT')", "d.hold = 'KEY'"),
    State.CLAIMED: ("d.state = 'CLAIMED'",),
    State.PUBLISHED: ("d.state = 'PUBLISHED'",),
    State.DEAD: ("d.state = 'DEAD'",),
}

# created_at is set right after seq is drawn, so it grows with it: a time is found by binary search.
# Ten seconds of margin, for a backend that was delayed between the two.
SEQ_AT = """
    WITH RECURSIVE half (low, high) AS (
        SELECT (SELECT seq FROM outbox.event ORDER BY seq LIMIT 1),
               (SELECT seq FROM outbox.event ORDER BY seq DESC LIMIT 1) + 1
        UNION ALL
        SELECT CASE WHEN m.created_at < %(at)s THEN m.seq + 1 ELSE h.low END,
               CASE WHEN m.created_at < %(at)s THEN h.high ELSE (h.low + h.high) / 2 END
          FROM half h, LATERAL (SELECT e.seq, e.created_at FROM outbox.event e
                                 WHERE e.seq >= (h.low + h.high) / 2 ORDER BY e.seq LIMIT 1) m
         WHERE h.low < h.high)
    SELECT coalesce(max(low), 0) AS seq FROM half WHERE low >= high
"""
CLOCK_MARGIN = timedelta(seconds=10)


def earlier(at: datetime) -> datetime:
    return at - CLOCK_MARGIN if at - datetime.min.replace(tzinfo=UTC) > CLOCK_MARGIN else at


def later(at: datetime) -> datetime:
    return at + CLOCK_MARGIN if datetime.max.replace(tzinfo=UTC) - at > CLOCK_MARGIN else at


def select(conn: Connection, wanted: Filter, page: Page) -> Listing:
    query, values = compose(conn, wanted, page)
    if wanted.published_after or wanted.published_before:
        conn.execute("SET LOCAL enable_bitmapscan = on")  # published_at has a BRIN index only
    rows = fetch(conn, query, values)
    if len(rows) <= page.limit:
        return Listing(rows, None)
    # All relays' rows of an event are on the same page.
    last = rows[page.limit - 1]["seq"]
    kept = [r for r in rows if (r["seq"] <= last if page.oldest_first else r["seq"] >= last)]
    return Listing(kept, last if len(kept) < len(rows) else None)


def compose(conn: Connection, wanted: Filter, page: Page) -> tuple[sql.Composed, dict[str, object]]:
    """The statement and its values; its form depends on the filter."""
    bounds = bounds_of(conn, wanted, page)
    relays = the_relays(conn, wanted.relay)
    values = vars(wanted) | bounds | relays
    # Enough rows to see past the last event of the page, whichever of its rows is the last.
    beyond = max(1, len(relays["relay_ids"]))
    values |= {"rows": page.limit + beyond, "event_type": as_like(wanted.event_type)}
    if wanted.aggregate is not None:
        values["aggregate_type"], values["aggregate_id"] = wanted.aggregate
    on_event = [sql.SQL(c) for f, c in FILTERS_ON_EVENT.items() if getattr(wanted, f) is not None]
    on_delivery: list[sql.Composable]
    on_delivery = [
        sql.SQL(c) for f, c in FILTERS_ON_DELIVERY.items() if getattr(wanted, f) is not None
    ]
    states = wanted.states
    if not states and (wanted.published_after or wanted.published_before):
        states = (State.PUBLISHED,)  # nothing else has a published_at
    how: dict[str, sql.Composable] = {
        "columns": COLUMNS,
        "relays": sql.SQL(THE_RELAYS),
        "direction": sql.SQL("ASC" if page.oldest_first else "DESC"),
    }
    looked_up = (wanted.key, wanted.correlation, wanted.aggregate)
    if states and all(value is None for value in looked_up):
        join = "JOIN outbox.event e ON e.seq = d.seq" if on_event else ""
        inner = {
            "direction": how["direction"],
            "where": all_of([*on_event, *on_delivery, *within(bounds, "d")]),
            "event": sql.SQL(join),
        }
        how["branches"] = sql.SQL(" UNION ALL ").join(branches_of(states, inner))
        how["unmatched"] = sql.SQL("")
        if State.PENDING in states and wanted.relay is None and not on_delivery:
            where = all_of([*on_event, *within(bounds, "u")])
            how["unmatched"] = UNMATCHED_ROWS.format(
                columns=COLUMNS, where=where, direction=how["direction"]
            )
        return FROM_STATES.format(**how), values
    if states:
        on_delivery.append(sql.SQL("{} = ANY (%(states)s::outbox.state[])").format(STATE))
        values["states"] = [state.value for state in states]
    if wanted.relay is not None:
        on_delivery.append(sql.SQL("d.relay_id IS NOT NULL"))
    where = all_of([*on_event, *on_delivery, *within(bounds, "e")])
    return FROM_EVENTS.format(**how, where=where), values


SEQ_BOUNDS = {
    "after_seq": "{}.seq > %(after_seq)s",
    "before_seq": "{}.seq < %(before_seq)s",
    "first_seq": "{}.seq >= %(first_seq)s",
    "beyond_seq": "{}.seq < %(beyond_seq)s",
}


def bounds_of(conn: Connection, wanted: Filter, page: Page) -> dict[str, object]:
    bounds: dict[str, object] = {}
    if page.after_seq is not None:
        bounds["after_seq"] = page.after_seq
    if page.before_seq is not None:
        bounds["before_seq"] = page.before_seq
    if wanted.created_after is not None:
        bounds["first_seq"] = seq_at(conn, earlier(wanted.created_after))
    if wanted.created_before is not None:
        bounds["beyond_seq"] = seq_at(conn, later(wanted.created_before))
    return bounds


def within(bounds: dict[str, object], table: str) -> list[sql.Composable]:
    return [sql.SQL(SEQ_BOUNDS[name]).format(sql.SQL(table)) for name in bounds]


def branches_of(
    states: tuple[State, ...], how: dict[str, sql.Composable]
) -> Iterator[sql.Composable]:
    if State.PENDING in states:
        yield IN_LINE_BRANCH.format(**how)
    for state in dict.fromkeys(states):
        for condition in STATE_CONDITIONS[state]:
            yield STATE_BRANCH.format(**how, state=sql.SQL(condition))


def all_of(conditions: list[sql.Composable]) -> sql.Composed:
    return sql.SQL(" AND ").join(conditions or [sql.SQL("true")])


def seq_at(conn: Connection, at: datetime) -> int:
    """The first seq that was drawn at that time or later."""
    return int(fetch(conn, SEQ_AT, {"at": at})[0]["seq"])


def as_like(pattern: str | None) -> str | None:
    if pattern is None:
        return None
    for char in "\\%_":
        pattern = pattern.replace(char, "\\" + char)
    return pattern.replace("*", "%")

"""
Listing: the events that a person asked for, page by page.

Called by `cli` (`list`, `dead --list`, `trace`). A row is an event and one relay's delivery of it;
an event that no relay subscribes to has a row without a relay. Pages go by seq, not by OFFSET: the
next one costs as much as the first, and events that arrive meanwhile do not shift it.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from psycopg import sql

from outbox_core.model.lifecycle import State
from outbox_core.store.connection import Connection
from outbox_core.store.inspect.by_state import EVENT_OF_MEMBER, MEANWHILE, branches_of
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
FILTERS_ON_TIME = {
    "published_after": "d.published_at >= %(published_after)s",
    "published_before": "d.published_at < %(published_before)s",
}
FILTERS_ON_DELIVERY = {
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
    coalesce(d.attempts - d.attempts_base, 0) AS attempts_in_budget,
    CASE WHEN d.state IS NOT NULL THEN coalesce(d.available_at, e.available_at, e.created_at) END
        AS available_at,
    d.claimed_by, d.claimed_at, d.lease_until, d.published_at, d.result, d.last_error, d.replay_id
""").format(state=STATE)

# An event's deliveries are looked up relay by relay, wherever they are.
FROM_EVENTS = sql.SQL("""
    SELECT {columns}
      FROM outbox.event e
      LEFT JOIN ({relays} CROSS JOIN LATERAL outbox.delivery_of(r.id, e.seq) d) ON true
     WHERE {where}
     ORDER BY e.seq {direction} LIMIT %(rows)s
""")
FROM_STATES = sql.SQL("""
    SELECT {columns}
      FROM (SELECT r.id, r.name, line.seq
              FROM {relays} CROSS JOIN LATERAL ({branches}) line
             ORDER BY line.seq {direction} LIMIT %(rows)s) r
     CROSS JOIN LATERAL outbox.delivery_of(r.id, r.seq) d
      JOIN outbox.event e ON e.seq = r.seq
     {unmatched}
     ORDER BY seq {direction} LIMIT %(rows)s
""")
UNMATCHED_ROWS = sql.SQL("""
    UNION ALL (
    SELECT {columns}
      FROM outbox.unmatched u JOIN outbox.event e ON e.seq = u.seq
      LEFT JOIN outbox.relay r ON false LEFT JOIN outbox.delivery d ON false
     WHERE {where}
     ORDER BY u.seq {direction} LIMIT %(rows)s)
""")

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

# What was published together in a period is between these two, and little else: seqs grow with the
# time of publication, though not strictly.
PUBLISHED_BETWEEN = sql.SQL("""
    SELECT min(p.first_seq) AS low, max(p.last_seq) AS high FROM outbox.published p
     WHERE p.relay_id = ANY (%(relay_ids)s) AND {meanwhile}
""")


def earlier(at: datetime) -> datetime:
    return at - CLOCK_MARGIN if at - datetime.min.replace(tzinfo=UTC) > CLOCK_MARGIN else at


def later(at: datetime) -> datetime:
    return at + CLOCK_MARGIN if datetime.max.replace(tzinfo=UTC) - at > CLOCK_MARGIN else at


def select(conn: Connection, wanted: Filter, page: Page) -> Listing:
    if is_timed(wanted):
        conn.execute("SET LOCAL enable_bitmapscan = on")  # published_at has a BRIN index only
    query, values = compose(conn, wanted, page)
    rows = fetch(conn, query, values)
    if len(rows) <= page.limit:
        return Listing(rows, None)
    # All relays' rows of an event are on the same page.
    last = rows[page.limit - 1]["seq"]
    kept = [r for r in rows if (r["seq"] <= last if page.oldest_first else r["seq"] >= last)]
    return Listing(kept, last if len(kept) < len(rows) else None)


def compose(conn: Connection, wanted: Filter, page: Page) -> tuple[sql.Composed, dict[str, object]]:
    """The statement and its values; its form depends on the filter."""
    low, high = bounds_of(conn, wanted, page)
    relays = the_relays(conn, wanted.relay)
    # Enough rows to see past the last event of the page, whichever of its rows is the last.
    beyond = max(1, len(relays["relay_ids"]))
    values = vars(wanted) | relays | {"low": low, "high": high, "rows": page.limit + beyond}
    values["event_type"] = as_like(wanted.event_type)
    if wanted.aggregate is not None:
        values["aggregate_type"], values["aggregate_id"] = wanted.aggregate
    how = {
        "columns": COLUMNS,
        "relays": sql.SQL(THE_RELAYS),
        "direction": sql.SQL("ASC" if page.oldest_first else "DESC"),
    }
    on_event = filters(FILTERS_ON_EVENT, wanted)
    on_time = filters(FILTERS_ON_TIME, wanted)
    on_delivery = filters(FILTERS_ON_DELIVERY, wanted)
    states = states_to_read(wanted)
    if not states:
        if wanted.states:
            on_delivery.append(sql.SQL("{} = ANY (%(states)s::outbox.state[])").format(STATE))
            values["states"] = [state.value for state in wanted.states]
        if wanted.relay is not None:
            on_delivery.append(sql.SQL("d.relay_id IS NOT NULL"))
        where = all_of([*on_event, *on_delivery, *on_time, *within(low, high, "e")])
        return FROM_EVENTS.format(**how, where=where), values

    bounds = within(low, high, "d")
    of_member = EVENT_OF_MEMBER.format(on_event=all_of(on_event)) if on_event else sql.SQL("")
    inner = {
        "direction": how["direction"],
        "neighbour": sql.SQL("lag" if page.oldest_first else "lead"),
        "event": sql.SQL("JOIN outbox.event e ON e.seq = d.seq" if on_event else ""),
        "event_of_member": of_member,
        "where": all_of([*on_event, *on_delivery, *on_time, *bounds]),
        "where_together": all_of([*on_time, *bounds]),
        "meanwhile": all_of(filters(MEANWHILE, wanted)),
    }
    values["published_low"], values["published_high"] = low, high
    if on_time:
        (found,) = fetch(conn, PUBLISHED_BETWEEN.format(**inner), values)
        values["published_low"] = max(low, LAST_SEQ if found["low"] is None else found["low"])
        values["published_high"] = min(high, found["high"] or 0)
    read = branches_of(states, inner, attempted_once(wanted), bool(on_time))
    unmatched: sql.Composable = sql.SQL("")
    if State.PENDING in states and wanted.relay is None and not on_time and not on_delivery:
        where = all_of([*on_event, *within(low, high, "u")])
        unmatched = UNMATCHED_ROWS.format(**how, where=where)
    branches = sql.SQL(" UNION ALL ").join(read)
    return FROM_STATES.format(**how, branches=branches, unmatched=unmatched), values


def states_to_read(wanted: Filter) -> tuple[State, ...]:
    """None of them if it is quicker to find the events first, and then what became of each."""
    if any(value is not None for value in (wanted.key, wanted.correlation, wanted.aggregate)):
        return ()
    if is_timed(wanted):
        return wanted.states or (State.PUBLISHED,)  # nothing else has a published_at
    if not attempted_once(wanted):
        return wanted.states or tuple(State)
    if wanted.tenant is not None and State.PUBLISHED in (wanted.states or State):
        return ()
    return wanted.states or (() if wanted.relay is None else tuple(State))


def is_timed(wanted: Filter) -> bool:
    return wanted.published_after is not None or wanted.published_before is not None


def attempted_once(wanted: Filter) -> bool:
    """May deliveries that needed one attempt only be among them?"""
    least, most = wanted.attempts_min, wanted.attempts_max
    return not wanted.error and (least is None or least <= 1) and (most is None or most >= 1)


LAST_SEQ = 2**63 - 1


def bounds_of(conn: Connection, wanted: Filter, page: Page) -> tuple[int, int]:
    """The first and the last seq that may be on the page."""
    low, high = [1], [LAST_SEQ]
    if page.after_seq is not None:
        low.append(page.after_seq + 1)
    if page.before_seq is not None:
        high.append(page.before_seq - 1)
    if wanted.created_after is not None:
        low.append(seq_at(conn, earlier(wanted.created_after)))
    if wanted.created_before is not None:
        high.append(seq_at(conn, later(wanted.created_before)) - 1)
    return min(max(low), LAST_SEQ), max(min(high), 0)


def within(low: int, high: int, table: str) -> list[sql.Composable]:
    """Only what is a bound: the planner takes `seq >= 1` for one if the statistics are old."""
    bounds = [("{}.seq >= %(low)s", low > 1), ("{}.seq <= %(high)s", high < LAST_SEQ)]
    return [sql.SQL(text).format(sql.SQL(table)) for text, bounding in bounds if bounding]


def filters(available: dict[str, str], wanted: Filter) -> list[sql.Composable]:
    return [sql.SQL(text) for name, text in available.items() if getattr(wanted, name) is not None]


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

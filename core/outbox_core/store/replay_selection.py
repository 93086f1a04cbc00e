"""
The selection of a bulk replay, as SQL.

Called by `store.replays` (the plan) and by `store.replay_preview` (a dry run). Conditions are fixed
fragments; what people wrote is only ever a parameter. Nothing here writes.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import psycopg
from psycopg import errors as pg
from psycopg import sql
from psycopg.types.json import Jsonb

from outbox_core.contract.replay import ReplayRequest
from outbox_core.errors import RelayUnknown, SelectionInvalid
from outbox_core.store.connection import Connection, first_line, translated
from outbox_core.store.inspect.listing import as_like, earlier, later, seq_at
from outbox_core.store.reading import fetch

ON_EVENT = {
    "event_types": "e.event_type LIKE ANY (%(event_types)s::text[])",
    "created_after": "e.created_at >= %(created_after)s",
    "created_before": "e.created_at < %(created_before)s",
    "ordering_keys": "e.ordering_key = ANY (%(ordering_keys)s::text[])",
    "aggregates": "(e.aggregate_type, e.aggregate_id) IN (SELECT * FROM unnest("
    "%(aggregates)s::text[], %(aggregate_ids)s::text[]))",
    "tenants": "e.tenant_id = ANY (%(tenants)s::text[])",
    "correlation_ids": "e.correlation_id = ANY (%(correlation_ids)s::text[])",
    "event_ids": "e.event_id = ANY (%(event_ids)s::uuid[])",
}
ON_DELIVERY = {
    "published_after": "d.published_at >= %(published_after)s",
    "published_before": "d.published_at < %(published_before)s",
    # each field by itself, so that ^ and $ match its beginning and end
    "error_matches": "(d.last_error->>'class' ~ %(error_matches)s"
    " OR d.last_error->>'code' ~ %(error_matches)s OR d.last_error->>'text' ~ %(error_matches)s)",
}
BOUNDS = {"first_seq": "{}.seq >= %(first_seq)s", "beyond_seq": "{}.seq < %(beyond_seq)s"}

# The same conditions on what was published together: they only leave out what has no such member.
# By range, and not as two comparisons: there is an index on it.
ON_PUBLISHED = {
    "published_after": "p.last_at >= %(published_after)s",
    "published_before": "p.first_at < %(published_before)s",
}
RANGE_OF_PUBLISHED = (
    "int8range(p.first_seq, p.last_seq, '[]') && int8range(%(first_seq)s, %(beyond_seq)s)"
)
NARROW = ("event_ids", "correlation_ids", "aggregates", "ordering_keys")
"""Each finds its few events by an index of its own; the first one that is set drives the query."""

# Literals, because the partial index on dead deliveries cannot be used with a parameter.
STATES = {
    ("DEAD",): "d.state = 'DEAD'",
    ("PUBLISHED",): "d.state = 'PUBLISHED'",
    ("DEAD", "PUBLISHED"): "d.state IN ('DEAD', 'PUBLISHED')",
}

OF_DELIVERIES = sql.SQL("""
    FROM outbox.delivery d {event} WHERE d.relay_id = %(relay_id)s AND {where}
""")
# Those that were published at their first attempt, together with others, have no row of their own.
OF_PUBLISHED_TOO = sql.SQL("""
    FROM (SELECT d.seq, d.state, d.lane, d.published_at, d.previous_published_at, d.last_error
            FROM outbox.delivery d WHERE d.relay_id = %(relay_id)s AND {state}
           UNION ALL
          SELECT m.seq, 'PUBLISHED', NULL, coalesce(m.at, p.first_at), NULL, NULL
            FROM outbox.published p, unnest(p.seqs, p.times) AS m (seq, at)
           WHERE p.relay_id = %(relay_id)s AND {packed}) d {event}
   WHERE {where}
""")
# OFFSET 0 keeps the planner from another join order, which old statistics may make look cheap.
OF_FEW_DELIVERIES = sql.SQL("""
    FROM {events} e, LATERAL (SELECT d.* FROM outbox.delivery d
                               WHERE d.relay_id = %(relay_id)s AND d.seq = e.seq OFFSET 0) d
   WHERE {where}
""")
OF_FEW_PUBLISHED_TOO = sql.SQL("""
    FROM {events} e, LATERAL (SELECT d.* FROM outbox.delivery_of(%(relay_id)s, e.seq) d
                              OFFSET 0) d
   WHERE {where}
""")
FEW_EVENTS = sql.SQL("(SELECT e.* FROM outbox.event e WHERE {lead} OFFSET 0)")
OF_AGGREGATES = sql.SQL("""
    (SELECT e.* FROM (SELECT DISTINCT * FROM unnest(%(aggregates)s::text[],
                                                    %(aggregate_ids)s::text[]) a (type, id)) a,
            LATERAL (SELECT e.* FROM outbox.event e
                      WHERE e.aggregate_type = a.type AND e.aggregate_id = a.id OFFSET 0) e
      OFFSET 0)
""")
OF_EVENTS = sql.SQL("""
    FROM {events} e JOIN outbox.relay r ON r.id = %(relay_id)s
   WHERE e.event_type <> 'outbox.sentinel' AND outbox.wants(r, e.event_type, e.tenant_id)
     AND NOT EXISTS ({had})
     AND {where}
""")
HAD = sql.SQL("SELECT 1 FROM outbox.deliveries d WHERE d.relay_id = %(relay_id)s AND d.seq = e.seq")
HAD_ONE = sql.SQL("SELECT 1 FROM outbox.delivery_of(%(relay_id)s, e.seq)")
WITH_EVENT = sql.SQL("JOIN outbox.event e ON e.seq = d.seq")


class Relay(NamedTuple):
    id: int
    ordered: bool


class Matching(NamedTuple):
    source: sql.Composed
    """FROM and WHERE: `d` is a delivery; in a Backfill `e` is an event."""
    values: dict[str, Any]


def find_relay(conn: Connection, name: str) -> Relay:
    with translated():
        rows = fetch(
            conn, "SELECT id, name, ordering FROM outbox.relay WHERE retirement IS NULL ORDER BY 2"
        )
    for row in rows:
        if row["name"] == name:
            return Relay(row["id"], row["ordering"] == "Key")
    known = ", ".join(row["name"] for row in rows)
    raise RelayUnknown(
        f"no relay {name!r} has registered with this database"
        + (f"; there are: {known}" if known else ": it registers when it first starts")
    )


def check_selection(conn: Connection, request: ReplayRequest) -> None:
    """Check what only the database can check."""
    pattern = request.select.error_matches
    with translated():
        try:
            conn.execute("SELECT '' ~ %s, %s::jsonb", (pattern or "", Jsonb(as_asked(request))))
        except pg.InvalidRegularExpression as error:
            raise SelectionInvalid(
                f"errorMatches {pattern!r} is not a regular expression: PostgreSQL: "
                f"{first_line(error)}"
            ) from error
        except psycopg.DataError as error:  # a character that PostgreSQL does not store
            raise SelectionInvalid(f"the request cannot be used: {first_line(error)}") from error


def as_asked(request: ReplayRequest) -> dict[str, Any]:
    """The request as in the OutboxReplay, without what was added for the driver."""
    return request.model_dump(
        mode="json", by_alias=True, exclude_none=True, include=set(ReplayRequest.model_fields)
    )


def is_narrow(request: ReplayRequest) -> bool:
    """Is an index used, whatever the statistics are? Otherwise whole tables may be read."""
    return lead_of(values_of(request)) is not None


def lead_of(values: dict[str, Any]) -> str | None:
    return next((name for name in NARROW if values[name] is not None), None)


def values_of(request: ReplayRequest) -> dict[str, Any]:
    """The selection by the names of its conditions; None: not set."""
    wanted = request.select
    types = None if "*" in (wanted.event_types or ("*",)) else wanted.event_types
    return {
        "event_types": types and [as_like(t) for t in types],
        "created_after": wanted.created and wanted.created.after,
        "created_before": wanted.created and wanted.created.before,
        "ordering_keys": as_list(wanted.ordering_keys),
        "aggregates": wanted.aggregates and [a.type for a in wanted.aggregates],
        "aggregate_ids": wanted.aggregates and [a.id for a in wanted.aggregates],
        "tenants": as_list(wanted.tenants),
        "correlation_ids": as_list(wanted.correlation_ids),
        "event_ids": as_list(wanted.event_ids),
        "published_after": wanted.published and wanted.published.after,
        "published_before": wanted.published and wanted.published.before,
        "error_matches": wanted.error_matches,
    }


def as_list(items: Iterable[str] | None) -> list[str] | None:
    return None if items is None else list(items)


def matching(
    conn: Connection, request: ReplayRequest, relay_id: int, with_event: bool = False
) -> Matching:
    """The events or deliveries that match. `with_event`: the caller needs `e` in any case."""
    values = values_of(request) | {"relay_id": relay_id}
    if values["created_after"] is not None:
        values["first_seq"] = seq_at(conn, earlier(values["created_after"]))
    if values["created_before"] is not None:
        values["beyond_seq"] = seq_at(conn, later(values["created_before"]))
    lead = lead_of(values)
    on_event = [c for name, c in ON_EVENT.items() if values[name] is not None and name != lead]
    on_delivery = [c for name, c in ON_DELIVERY.items() if values[name] is not None]
    bounds = [c for name, c in BOUNDS.items() if name in values]
    events = events_by(lead)
    if request.action == "Backfill":
        where = all_of([*on_event, *(c.format("e") for c in bounds), "true"])
        had = HAD_ONE if lead else HAD
        return Matching(OF_EVENTS.format(events=events, had=had, where=where), values)
    state = STATES[tuple(sorted(set(request.states)))]
    where = all_of([state, *on_event, *on_delivery, *(c.format("d") for c in bounds)])
    # What was published at its first attempt has no error.
    packed = "PUBLISHED" in request.states and values["error_matches"] is None
    if lead:
        few = OF_FEW_PUBLISHED_TOO if packed else OF_FEW_DELIVERIES
        return Matching(few.format(events=events, where=where), values)
    join = WITH_EVENT if with_event or on_event else sql.SQL("")
    if not packed:
        return Matching(OF_DELIVERIES.format(event=join, where=where), values)
    ranges = [c for name, c in ON_PUBLISHED.items() if values[name] is not None]
    if bounds:
        ranges.append(RANGE_OF_PUBLISHED)
        values = dict.fromkeys(BOUNDS) | values  # None: without a limit
    source = OF_PUBLISHED_TOO.format(
        state=sql.SQL(state), packed=all_of([*ranges, "true"]), event=join, where=where
    )
    return Matching(source, values)


def events_by(lead: str | None) -> sql.Composable:
    if lead is None:
        return sql.SQL("outbox.event")
    if lead == "aggregates":
        return OF_AGGREGATES
    return FEW_EVENTS.format(lead=sql.SQL(ON_EVENT[lead]))


def all_of(conditions: Iterable[str]) -> sql.Composed:
    return sql.SQL(" AND ").join(sql.SQL(c) for c in conditions)

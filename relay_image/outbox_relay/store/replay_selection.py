"""
The events that a bulk replay is about: its selection as SQL, and what a dry run tells of them.

Called by `store.replays` (the plan) and by the driver of a dry run. Conditions are fixed fragments;
what people wrote enters as parameters only. Nothing here writes.
"""

from collections.abc import Iterable
from math import ceil
from typing import Any, NamedTuple

import psycopg
from psycopg import errors as pg
from psycopg import sql
from psycopg.types.json import Jsonb

from outbox_relay.contract.replay import Preview, ReplayRequest, ReplaySettings, TypeCount
from outbox_relay.errors import RelayUnknown, SelectionInvalid
from outbox_relay.store.connection import Connection, first_line, translated
from outbox_relay.store.inspection import fetch, reading
from outbox_relay.store.selection import as_like, earlier, later, seq_at

KINDS_TOLD = 100
SAMPLES = 20
KEYS_LOOKED_AT = 10_000
"""Whether later events of a key are out is asked of so many keys, and of the next hundred events of
each: the answer is a warning."""

ON_EVENT = {
    "event_types": "e.event_type LIKE ANY (%(event_types)s::text[])",
    "created_after": "e.created_at >= %(created_after)s",
    "created_before": "e.created_at < %(created_before)s",
    "ordering_keys": "e.ordering_key = ANY (%(ordering_keys)s::text[])",
    "aggregate_ids": "e.aggregate_id IS NOT NULL AND (e.aggregate_type, e.aggregate_id) IN"
    " (SELECT * FROM unnest(%(aggregate_types)s::text[], %(aggregate_ids)s::text[]))",
    "tenants": "e.tenant_id = ANY (%(tenants)s::text[])",
    "correlation_ids": "e.correlation_id = ANY (%(correlation_ids)s::text[])",
    "event_ids": "e.event_id = ANY (%(event_ids)s::uuid[])",
}
ON_DELIVERY = {
    "published_after": "d.published_at >= %(published_after)s",
    "published_before": "d.published_at < %(published_before)s",
    # each by itself, so that ^ and $ mean what they seem to
    "error_matches": "(d.last_error->>'class' ~ %(error_matches)s"
    " OR d.last_error->>'code' ~ %(error_matches)s OR d.last_error->>'text' ~ %(error_matches)s)",
}
BOUNDS = {"first_seq": "{}.seq >= %(first_seq)s", "beyond_seq": "{}.seq < %(beyond_seq)s"}
NARROW = ("ordering_keys", "aggregate_ids", "correlation_ids", "event_ids")
"""Each finds its few events by an index of its own."""

# With literals, because the index of what is dead serves no parameter.
STATES = {
    ("DEAD",): "d.state = 'DEAD'",
    ("PUBLISHED",): "d.state = 'PUBLISHED'",
    ("DEAD", "PUBLISHED"): "d.state IN ('DEAD', 'PUBLISHED')",
}

OF_DELIVERIES = sql.SQL("""
    FROM outbox.delivery d {event} WHERE d.relay_id = %(relay_id)s AND {where}
""")
OF_EVENTS = sql.SQL("""
    FROM outbox.event e JOIN outbox.relay r ON r.id = %(relay_id)s
   WHERE e.event_type <> 'outbox.sentinel' AND outbox.wants(r, e.event_type, e.tenant_id)
     AND NOT EXISTS (SELECT 1 FROM outbox.delivery d
                      WHERE d.relay_id = %(relay_id)s AND d.seq = e.seq)
     AND {where}
""")
WITH_EVENT = sql.SQL("JOIN outbox.event e ON e.seq = d.seq")


class Relay(NamedTuple):
    id: int
    ordered: bool


class Matching(NamedTuple):
    source: sql.Composed
    """FROM and WHERE: `d` are the deliveries, or `e` the events of a Backfill."""
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
        + (f"; known are: {known}" if known else ": it does when it first starts")
    )


def check_selection(conn: Connection, request: ReplayRequest) -> None:
    """What only the database can judge."""
    pattern = request.select.error_matches
    with translated():
        try:
            conn.execute("SELECT '' ~ %s, %s::jsonb", (pattern or "", Jsonb(as_asked(request))))
        except pg.InvalidRegularExpression as error:
            raise SelectionInvalid(
                f"errorMatches {pattern!r} is no regular expression: PostgreSQL: "
                f"{first_line(error)}"
            ) from error
        except psycopg.DataError as error:  # a character that it does not store
            raise SelectionInvalid(f"the request cannot be used: {first_line(error)}") from error


def as_asked(request: ReplayRequest) -> dict[str, Any]:
    """In the words of the OutboxReplay, without what was added for the driver."""
    return request.model_dump(
        mode="json", by_alias=True, exclude_none=True, include=set(ReplayRequest.model_fields)
    )


def is_narrow(request: ReplayRequest) -> bool:
    """Is it found by an index, whatever the statistics say? Else whole tables may be read."""
    return any(values_of(request)[name] is not None for name in NARROW)


def values_of(request: ReplayRequest) -> dict[str, Any]:
    """The selection by the names of its conditions; None does not matter."""
    wanted = request.select
    types = None if "*" in (wanted.event_types or ("*",)) else wanted.event_types
    return {
        "event_types": types and [as_like(t) for t in types],
        "created_after": wanted.created and wanted.created.after,
        "created_before": wanted.created and wanted.created.before,
        "ordering_keys": as_list(wanted.ordering_keys),
        "aggregate_types": wanted.aggregates and [a.type for a in wanted.aggregates],
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
    """`with_event`: the caller needs `e` in any case."""
    values = values_of(request) | {"relay_id": relay_id}
    if values["created_after"] is not None:
        values["first_seq"] = seq_at(conn, earlier(values["created_after"]))
    if values["created_before"] is not None:
        values["beyond_seq"] = seq_at(conn, later(values["created_before"]))
    on_event = [c for name, c in ON_EVENT.items() if values[name] is not None]
    on_delivery = [c for name, c in ON_DELIVERY.items() if values[name] is not None]
    bounds = [c for name, c in BOUNDS.items() if name in values]
    if request.action == "Backfill":
        conditions = [*on_event, *(c.format("e") for c in bounds), "true"]
        return Matching(OF_EVENTS.format(where=both(conditions)), values)
    state = STATES[tuple(sorted(set(request.states)))]
    conditions = [state, *on_event, *on_delivery, *(c.format("d") for c in bounds)]
    join = WITH_EVENT if with_event or on_event else sql.SQL("")
    return Matching(OF_DELIVERIES.format(event=join, where=both(conditions)), values)


def both(conditions: Iterable[str]) -> sql.Composed:
    return sql.SQL(" AND ").join(sql.SQL(c) for c in conditions)


# The dry run --------------------------------------------------------------------------------

KINDS = sql.SQL("""
    SELECT e.event_type, {state} AS state, count(*) AS n, min(e.created_at) AS oldest,
           max(e.created_at) AS newest, count({publication}) AS published_before
    {matching}
     GROUP BY 1, 2 ORDER BY 3 DESC, 1, 2
""")

SOME = sql.SQL("""
    SELECT s.event_id::text FROM (SELECT e.seq, e.event_id {matching} LIMIT %(samples)s) s
     ORDER BY s.seq
""")

KEYS = sql.SQL("""
    WITH key AS MATERIALIZED (
        SELECT e.ordering_key, min(e.seq) AS seq {matching} AND e.ordering_key IS NOT NULL
         GROUP BY 1
    ), looked_at AS MATERIALIZED (SELECT * FROM key LIMIT %(keys)s)
    SELECT (SELECT count(*) FROM key) AS keys, (SELECT count(*) FROM looked_at) AS looked_at,
           (SELECT count(*) FROM looked_at k WHERE EXISTS (
                SELECT 1 FROM (
                    SELECT l.state FROM outbox.event n
                      JOIN outbox.delivery l ON l.relay_id = %(relay_id)s AND l.seq = n.seq
                     WHERE n.ordering_key = k.ordering_key AND n.seq > k.seq
                     ORDER BY n.seq LIMIT 100) next
                 WHERE next.state = 'PUBLISHED')) AS overtaken
""")


def preview(conn: Connection, settings: ReplaySettings) -> tuple[int, Preview]:
    """How many match, and what else is to be known of them. Changes nothing."""
    relay = find_relay(conn, settings.relay)
    check_selection(conn, settings)
    has_state = settings.action == "Requeue"
    columns = {
        "state": sql.SQL("d.state::text" if has_state else "NULL::text"),
        "publication": sql.SQL(
            "coalesce(d.published_at, d.previous_published_at)" if has_state else "NULL::text"
        ),
    }
    with reading(conn, timeout=0, whole_tables=not is_narrow(settings)):
        source, values = matching(conn, settings, relay.id, with_event=True)
        values |= {"samples": SAMPLES, "keys": KEYS_LOOKED_AT}
        kinds = fetch(conn, KINDS.format(matching=source, **columns), values)
        samples = fetch(conn, SOME.format(matching=source), values)
        (keys,) = fetch(conn, KEYS.format(matching=source), values)
    matched = sum(k["n"] for k in kinds)
    return matched, Preview(
        by_type=tuple(
            TypeCount(event_type=k["event_type"], state=k["state"], count=k["n"])
            for k in kinds[:KINDS_TOLD]
        ),
        oldest=min((k["oldest"] for k in kinds), default=None),
        newest=max((k["newest"] for k in kinds), default=None),
        keys=keys["keys"],
        estimated_seconds=ceil(matched / settings.rate.events_per_second),
        samples=tuple(s["event_id"] for s in samples),
        warnings=tuple(
            warnings_of(settings, matched, sum(k["published_before"] for k in kinds), keys)
        ),
    )


def warnings_of(
    settings: ReplaySettings, matched: int, published_before: int, keys: dict[str, Any]
) -> Iterable[str]:
    limit = settings.max_events
    if matched == 0:
        yield "nothing matches: nothing would happen"
        return
    if limit is not None and matched > limit:
        yield f"{matched} events match, and maxEvents is {limit}: nothing would be replayed"
    if published_before:
        yield f"duplicates: {published_before} were published before, consumers get them again"
    if settings.action == "Requeue" and published_before < matched:
        yield (
            f"{matched - published_before} were never acknowledged, but an attempt without an "
            "answer may have arrived: consumers may get them twice"
        )
    if keys["overtaken"]:
        asked = keys["looked_at"]
        of = (
            f"{asked}"
            if asked == keys["keys"]
            else f"{asked} that were looked at, of {keys['keys']}"
        )
        yield (
            f"order: of {keys['overtaken']} keys ({of}) later events are published already: "
            "consumers get the older ones after them"
        )

"""
The dry run of a bulk replay: how many events match, which, and what consumers would see.

Called by the driver. One read-only snapshot: the figures are consistent, and nothing changes.
"""

from collections.abc import Iterator
from math import ceil
from typing import Any

from psycopg import sql

from outbox_core.contract.replay import Preview, ReplaySettings, TypeCount
from outbox_core.store.connection import Connection
from outbox_core.store.reading import fetch, reading
from outbox_core.store.replay_selection import (
    check_selection,
    find_relay,
    is_narrow,
    matching,
)

MOST_TYPES_SHOWN = 100
MOST_SAMPLES_SHOWN = 20
MOST_KEYS_CHECKED = 10_000
"""Only this many keys, and the next hundred events of each, are checked for later events that are
already published: the result is a warning."""

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
    ), checked AS MATERIALIZED (SELECT * FROM key LIMIT %(keys)s)
    SELECT (SELECT count(*) FROM key) AS keys, (SELECT count(*) FROM checked) AS checked,
           (SELECT count(*) FROM checked k WHERE EXISTS (
                SELECT 1 FROM (
                    SELECT l.state FROM outbox.event n, LATERAL (
                               SELECT d.state FROM outbox.delivery_of(%(relay_id)s, n.seq) d
                                LIMIT 1) l  -- one place after the other, until it is found
                     WHERE n.ordering_key = k.ordering_key AND n.seq > k.seq
                     ORDER BY n.seq LIMIT 100) next
                 WHERE next.state = 'PUBLISHED')) AS overtaken
""")


def preview(conn: Connection, settings: ReplaySettings) -> tuple[int, Preview]:
    """How many events match, and a preview of them. Changes nothing."""
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
        values |= {"samples": MOST_SAMPLES_SHOWN, "keys": MOST_KEYS_CHECKED}
        kinds = fetch(conn, KINDS.format(matching=source, **columns), values)
        samples = fetch(conn, SOME.format(matching=source), values)
        (keys,) = fetch(conn, KEYS.format(matching=source), values)
    matched = sum(k["n"] for k in kinds)
    return matched, Preview(
        by_type=tuple(
            TypeCount(event_type=k["event_type"], state=k["state"], count=k["n"])
            for k in kinds[:MOST_TYPES_SHOWN]
        ),
        types_left_out=max(0, len(kinds) - MOST_TYPES_SHOWN) or None,
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
) -> Iterator[str]:
    limit = settings.max_events
    if matched == 0:
        yield "nothing matches: nothing would happen"
        return
    if limit is not None and matched > limit:
        yield f"{matched} events match, but maxEvents is {limit}: nothing would be replayed"
    if published_before:
        yield f"duplicates: {published_before} were published before, consumers get them again"
    if settings.action == "Requeue" and published_before < matched:
        yield (
            f"{matched - published_before} were never acknowledged, but an attempt without an "
            "answer may have reached the broker: consumers may get them twice"
        )
    if keys["overtaken"]:
        some = "" if keys["checked"] == keys["keys"] else f" checked, of {keys['keys']} in all,"
        yield (
            f"order: {keys['overtaken']} of {keys['checked']} keys{some} have later events that "
            "are already published: consumers get the older ones after them"
        )

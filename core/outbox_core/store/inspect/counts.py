"""Counts per relay and state: fast estimates, or exact, however long it takes. Called by `cli`."""

from outbox_core.store.connection import Connection
from outbox_core.store.inspect.backlog import MOST_COUNTED_ROWS, backlog, published
from outbox_core.store.reading import Row, fetch

EXACT_COUNTS = """
    SELECT r.id, r.name AS relay, r.active, coalesce(own.pending, 0) AS pending,
           coalesce(own.claimed, 0) + (SELECT coalesce(sum(cardinality(b.seqs)), 0)::bigint
                                         FROM outbox.batch b WHERE b.relay_id = r.id) AS claimed,
           coalesce(own.published, 0) + (SELECT coalesce(sum(p.size), 0)::bigint
                                           FROM outbox.published p WHERE p.relay_id = r.id)
               AS published,
           coalesce(own.dead, 0) AS dead
      FROM outbox.relay r LEFT JOIN (
               SELECT d.relay_id, count(*) FILTER (WHERE d.state = 'PENDING') AS pending,
                      count(*) FILTER (WHERE d.state = 'CLAIMED') AS claimed,
                      count(*) FILTER (WHERE d.state = 'PUBLISHED') AS published,
                      count(*) FILTER (WHERE d.state = 'DEAD') AS dead
                 FROM outbox.delivery d GROUP BY d.relay_id) own ON own.relay_id = r.id
     ORDER BY r.name
"""
COUNT_UNMATCHED = "SELECT count(*) AS n FROM (SELECT 1 FROM outbox.unmatched LIMIT %(limit)s) u"


def exact_counts(conn: Connection) -> list[Row]:
    rows = fetch(conn, EXACT_COUNTS)
    for row in rows:
        seen = backlog(conn, row.pop("id"))
        row |= {"approximate": False, "oldest_pending_seconds": seen.oldest_pending_seconds}
    return rows


def cheap_counts(conn: Connection) -> list[Row]:
    return [
        _cheap(conn, relay)
        for relay in fetch(conn, "SELECT id, name, active FROM outbox.relay ORDER BY name")
    ]


def _cheap(conn: Connection, relay: Row) -> Row:
    seen = backlog(conn, relay["id"])
    done, guessed = published(conn, relay["id"])
    return {
        "relay": relay["name"],
        "active": relay["active"],
        "pending": seen.pending,
        "claimed": seen.claimed,
        "published": done,
        "dead": seen.dead,
        "approximate": seen.approximate or guessed,
        "oldest_pending_seconds": seen.oldest_pending_seconds,
    }


def count_unmatched(conn: Connection, exact: bool) -> Row:
    """Events that no relay subscribes to."""
    found = fetch(conn, COUNT_UNMATCHED, {"limit": None if exact else MOST_COUNTED_ROWS + 1})[0][
        "n"
    ]
    over = not exact and found > MOST_COUNTED_ROWS
    return {"count": MOST_COUNTED_ROWS if over else found, "at_least": over}

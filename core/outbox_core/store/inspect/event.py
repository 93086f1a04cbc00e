"""
One event in full: its fields, its causes and effects, and what people did to it.

Called by `cli`, inside `store.reading`.
"""

from uuid import UUID

from outbox_core.errors import RequestRefused
from outbox_core.store.connection import Connection
from outbox_core.store.reading import Row, fetch

EVENT = """
    SELECT e.event_id, e.seq, e.event_type, e.created_at, e.occurred_at, e.available_at,
           e.max_attempts, e.tenant_id, e.aggregate_type, e.aggregate_id, e.ordering_key,
           e.partition_key, e.idempotency_key, e.correlation_id, e.causation_id, e.content_type,
           e.headers, e.metadata, octet_length(e.payload) AS payload_bytes,
           -- of a huge payload only what is asked for leaves the server
           substring(e.payload FROM 1 FOR coalesce(%(bytes)s::integer, 2147483647)) AS payload
      FROM outbox.event e WHERE e.event_id = %(event_id)s
"""

DELIVERIES = """
    SELECT r.name AS relay, r.ordering, r.active, d.state, d.hold, d.attempts,
           d.attempts - d.attempts_base AS attempts_in_budget, d.crashes,
           coalesce(d.available_at, e.available_at, e.created_at) AS available_at,
           d.claimed_at, d.claimed_by, d.lease_until, d.published_at, d.previous_published_at,
           d.result, d.last_error, d.replay_id
      FROM outbox.event e CROSS JOIN outbox.relay r
     CROSS JOIN LATERAL outbox.delivery_of(r.id, e.seq) d
     WHERE e.seq = %(seq)s
     ORDER BY r.name
"""

READ_AUDIT = """
    SELECT a.id, a.at, a.actor, a.db_user, a.action, a.relay, a.event_id, a.seq, a.reason,
           a.before, a.after
      FROM outbox.audit a
     WHERE (%(event_id)s::uuid IS NULL OR a.event_id = %(event_id)s)
       AND (%(before_id)s::bigint IS NULL OR a.id < %(before_id)s)
     ORDER BY a.id DESC LIMIT %(limit)s
"""


def show(conn: Connection, event_id: UUID, payload_bytes: int | None = None) -> Row:
    """One event in full: its fields, what each relay did with it, what people did to it."""
    found = fetch(conn, EVENT, {"event_id": event_id, "bytes": payload_bytes})
    if not found:
        raise RequestRefused(f"there is no event {event_id}")
    event = found[0]
    event["deliveries"] = fetch(conn, DELIVERIES, {"seq": event["seq"]})
    event["audit"] = audit(conn, event_id, limit=1000)
    return event


def audit(
    conn: Connection, event_id: UUID | None, limit: int, before_id: int | None = None
) -> list[Row]:
    """What was done by hand, newest first."""
    return fetch(conn, READ_AUDIT, {"event_id": event_id, "before_id": before_id, "limit": limit})


# The state is looked up per relay, because deliveries are found by (relay, seq) only.
CHAIN = """
    SELECT c.*, e.causation_id, (
               SELECT jsonb_object_agg(r.name, d.state)
                 FROM outbox.relay r CROSS JOIN LATERAL outbox.delivery_of(r.id, c.seq) d
           ) AS states
      FROM {} c JOIN outbox.event e ON e.seq = c.seq
     ORDER BY c.depth, c.seq LIMIT %(limit)s
"""
CAUSES = CHAIN.format(
    "(SELECT depth, cause AS event_id, event_type, seq, created_at"
    " FROM outbox.causes(%(event_id)s))"
)
EFFECTS = CHAIN.format(
    "(SELECT depth, effect AS event_id, event_type, seq, created_at"
    " FROM outbox.effects(%(event_id)s))"
)


def causes(conn: Connection, event_id: UUID, limit: int = 1000) -> list[Row]:
    """The event (depth 0), what caused it (1), what caused that (2), and so on."""
    return _chain(conn, CAUSES, event_id, limit)


def effects(conn: Connection, event_id: UUID, limit: int = 1000) -> list[Row]:
    """The event (depth 0), what it caused (1), what that caused (2), and so on."""
    return _chain(conn, EFFECTS, event_id, limit)


def _chain(conn: Connection, query: str, event_id: UUID, limit: int) -> list[Row]:
    rows = fetch(conn, query, {"event_id": event_id, "limit": limit})
    if not rows:
        raise RequestRefused(f"there is no event {event_id}")
    return rows

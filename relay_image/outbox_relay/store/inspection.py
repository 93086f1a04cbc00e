"""
Inspection: one event whole, where it came from, who did what to it, which relays and bulk replays
there are.

Called by `cli`. Reads only, and says so to the database: every look is one READ ONLY snapshot, so
it works with the role outbox_reader, on a standby, and while no relay runs. What lists events is in
`store.selection`, what counts them in `store.backlog`, what is wrong with them in `store.trouble`.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from psycopg import DataError, sql
from psycopg import errors as pg
from psycopg.abc import Buffer
from psycopg.rows import dict_row
from psycopg.types.datetime import TimestamptzLoader

from outbox_relay.errors import Refused, StoreError
from outbox_relay.store.backlog import backlog as backlog
from outbox_relay.store.connection import Connection, translated

Row = dict[str, Any]
"""Keys are the names that the JSON output has."""

FOREVER = datetime.max.replace(tzinfo=UTC)
LONG_AGO = datetime.min.replace(tzinfo=UTC)

# By index, in its order: the statistics may be older than the ten million rows that came since, and
# then a plan that reads a whole table looks cheap. The costs that this sets must not start the JIT.
SET_UP = """
    SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY;
    SET LOCAL statement_timeout = {timeout};
    SET LOCAL enable_seqscan = {planner};
    SET LOCAL enable_bitmapscan = {planner};
    SET LOCAL enable_hashjoin = {planner};
    SET LOCAL enable_mergejoin = {planner};
    SET LOCAL jit = off
"""


@contextmanager
def reading(conn: Connection, timeout: float = 30, whole_tables: bool = False) -> Iterator[None]:
    """One read-only snapshot, in which nothing takes longer than `timeout` seconds."""
    conn.adapters.register_loader("timestamptz", AnyTimeLoader)
    planner = "on" if whole_tables else "off"
    with translated():
        try:
            with conn.transaction():
                conn.execute(SET_UP.format(timeout=round(timeout * 1000), planner=planner))
                yield
        except pg.QueryCanceled as error:
            raise StoreError(
                f"the database needed more than {timeout:g} s: narrow it down (a time range, "
                "--state, --key, --correlation, a smaller --limit), or allow more with --timeout"
            ) from error


class AnyTimeLoader(TimestamptzLoader):
    """`infinity` is a legal available_at, and no datetime."""

    def load(self, data: Buffer) -> datetime:
        try:
            return super().load(data)
        except DataError:
            text = bytes(data)
            return LONG_AGO if text.startswith(b"-") or text.endswith(b"BC") else FOREVER


def fetch(
    conn: Connection, query: str | sql.Composed, values: Mapping[str, object] | None = None
) -> list[Row]:
    with conn.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(query, values).fetchall()


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
           d.attempts - d.attempts_base AS attempts_in_budget, d.crashes, d.available_at,
           d.claimed_at, d.claimed_by, d.lease_until, d.published_at, d.previous_published_at,
           d.result, d.last_error, d.replay_id
      FROM outbox.relay r JOIN outbox.delivery d ON d.relay_id = r.id AND d.seq = %(seq)s
     ORDER BY r.name
"""

AUDIT = """
    SELECT a.id, a.at, a.actor, a.db_user, a.action, a.relay, a.event_id, a.seq, a.reason,
           a.before, a.after
      FROM outbox.audit a
     WHERE (%(event_id)s::uuid IS NULL OR a.event_id = %(event_id)s)
       AND (%(before_id)s::bigint IS NULL OR a.id < %(before_id)s)
     ORDER BY a.id DESC LIMIT %(limit)s
"""


def show(conn: Connection, event_id: UUID, payload_bytes: int | None = None) -> Row:
    """One event whole: its fields, what each relay did with it, what people did to it."""
    found = fetch(conn, EVENT, {"event_id": event_id, "bytes": payload_bytes})
    if not found:
        raise Refused(f"there is no event {event_id}")
    event = found[0]
    event["deliveries"] = fetch(conn, DELIVERIES, {"seq": event["seq"]})
    event["audit"] = audit(conn, event_id, limit=1000)
    return event


def audit(
    conn: Connection, event_id: UUID | None, limit: int, before_id: int | None = None
) -> list[Row]:
    """What was done by hand, newest first."""
    return fetch(conn, AUDIT, {"event_id": event_id, "before_id": before_id, "limit": limit})


# The state is looked up per relay, because deliveries are found by (relay, seq) only.
CHAIN = """
    SELECT c.*, e.causation_id, (
               SELECT jsonb_object_agg(r.name, d.state)
                 FROM outbox.relay r JOIN outbox.delivery d ON d.relay_id = r.id AND d.seq = c.seq
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
        raise Refused(f"there is no event {event_id}")
    return rows


RELAYS = """
    SELECT r.name, r.active, r.ordering, r.event_types, r.tenants, r.notify, r.version,
           r.registered_at, r.retirement IS NOT NULL AS retired,
           (SELECT array_agg(DISTINCT h.owner ORDER BY h.owner) FROM outbox.holder h
             WHERE h.relay_id = r.id AND h.expires_at > now()) AS lane_holders
      FROM outbox.relay r ORDER BY r.name
"""


def relays(conn: Connection) -> list[Row]:
    return fetch(conn, RELAYS)


# When the last chunk was done is looked up in the ledger, band by band: it has an index by band.
REPLAYS = """
    SELECT p.id, r.name AS relay, p.action,
           CASE WHEN p.finished_at IS NOT NULL THEN 'finished'
                WHEN p.stopped_at IS NOT NULL THEN 'stopped'
                WHEN p.planned_at IS NULL THEN 'planning' ELSE 'running' END AS state,
           p.matched, p.replayed, s.skipped, p.skipped AS skipped_because,
           round(100 * (p.replayed + s.skipped)::numeric / nullif(p.matched, 0), 1)::float8
               AS percent,
           p.rate, p.pace, p.requested_by, p.reason, p.request, p.created_at, p.planned_at,
           (SELECT max(last.at) FROM generate_series(0, 63) AS b (band), LATERAL (
                SELECT l.at FROM outbox.replay_ledger l
                 WHERE l.replay_id = p.id AND l.band = b.band ORDER BY l.n DESC LIMIT 1) last
           ) AS last_chunk_at,
           p.stopped_at, p.finished_at
      FROM outbox.replay p JOIN outbox.relay r ON r.id = p.relay_id, LATERAL (
               SELECT coalesce(sum(c.value::bigint), 0)::bigint AS skipped
                 FROM jsonb_each_text(p.skipped) c) s
     WHERE %(relay)s::text IS NULL OR r.name = %(relay)s
     ORDER BY p.created_at DESC, p.id LIMIT %(limit)s
"""


def replays(conn: Connection, relay: str | None, limit: int) -> list[Row]:
    """Bulk replays and how far each is, the newest first."""
    return fetch(conn, REPLAYS, {"relay": relay, "limit": limit})


THE_RELAYS = """
    unnest(%(relay_ids)s::integer[], %(relay_names)s::text[], %(relay_orderings)s::text[])
        AS r (id, name, ordering)
"""
"""The relays that are asked about, as values: the planner then has nothing to guess about them."""


def the_relays(conn: Connection, name: str | None = None) -> dict[str, list[Any]]:
    """Values for THE_RELAYS: all, or one by name."""
    found = fetch(conn, "SELECT id, name, ordering FROM outbox.relay ORDER BY name")
    chosen = [r for r in found if name in (None, r["name"])]
    if name is not None and not chosen:
        known = ", ".join(r["name"] for r in found)
        raise Refused(
            f"there is no relay {name!r}; "
            + (f"known are: {known}" if known else "none has registered yet")
        )
    return {
        "relay_ids": [r["id"] for r in chosen],
        "relay_names": [r["name"] for r in chosen],
        "relay_orderings": [r["ordering"] for r in chosen],
    }


def clock(conn: Connection) -> datetime:
    """Now, by the clock that every time in the outbox comes from."""
    now = fetch(conn, "SELECT clock_timestamp() AS now")[0]["now"]
    assert isinstance(now, datetime)
    return now

"""The relays and the bulk replays. Called by `cli`, inside `store.reading`."""

from outbox_core.store.connection import Connection
from outbox_core.store.reading import Row, fetch

RELAYS = """
    SELECT r.name, r.active, r.ordering, r.event_types, r.tenants, r.notify, r.version,
           r.registered_at, r.retirement IS NOT NULL AS retired,
           (SELECT array_agg(DISTINCT h.owner ORDER BY h.owner) FROM outbox.holder h
             WHERE h.relay_id = r.id AND h.expires_at > now()) AS lane_holders
      FROM outbox.relay r ORDER BY r.name
"""


def relays(conn: Connection) -> list[Row]:
    return fetch(conn, RELAYS)


# The time of the last chunk is read from the ledger, band by band: it has an index by band.
REPLAYS = """
    SELECT p.id, r.name AS relay, p.action,
           CASE WHEN p.finished_at IS NOT NULL THEN 'finished'
                WHEN p.stopped_at IS NOT NULL THEN 'stopped'
                WHEN p.planned_at IS NULL THEN 'planning' ELSE 'running' END AS state,
           p.matched, p.replayed, s.skipped, p.skipped AS skipped_because,
           round(100 * (p.replayed + s.skipped)::numeric / nullif(p.matched, 0), 1)::float8
               AS percent,
           p.rate, p.pace, p.requested_by, p.reason, p.request, p.created_at, p.planned_at,
           (SELECT max(last.at) FROM generate_series(0, outbox.lanes() - 1) b (band), LATERAL (
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
    """Bulk replays and their progress, the newest first."""
    return fetch(conn, REPLAYS, {"relay": relay, "limit": limit})

-- Reading: the whole event as the specification describes it, and where it came from.

CREATE VIEW outbox.events AS
SELECT e.seq, e.event_id, e.event_type, e.payload, e.content_type, e.headers, e.metadata,
       e.partition_key, e.ordering_key, e.idempotency_key, e.tenant_id, e.correlation_id,
       e.causation_id, e.aggregate_type, e.aggregate_id, e.occurred_at, e.created_at,
       e.max_attempts, r.name AS relay, coalesce(d.state, 'PENDING') AS state,
       coalesce(d.attempts, 0) AS attempts,
       coalesce(d.attempts - d.attempts_base, 0) AS attempts_in_budget,
       coalesce(d.available_at, e.available_at) AS available_at, d.hold, d.claimed_at,
       d.claimed_by, d.lease_until, d.published_at, d.previous_published_at, d.last_error,
       d.result, d.replay_id, d.crashes
  FROM outbox.event e
  -- by way of the relays, because deliveries are keyed by (relay, seq)
  LEFT JOIN (outbox.relay r JOIN outbox.delivery d ON d.relay_id = r.id) ON d.seq = e.seq;
COMMENT ON VIEW outbox.events IS
    'Every event with its state per relay; relay is NULL while no relay wants the event.';

CREATE FUNCTION outbox.trace(correlation_id text) RETURNS SETOF outbox.event
    LANGUAGE sql STABLE AS $$
    SELECT e.* FROM outbox.event e WHERE e.correlation_id = trace.correlation_id ORDER BY e.seq $$;
COMMENT ON FUNCTION outbox.trace IS 'All events of a correlation id, in order.';

CREATE FUNCTION outbox.causes(event_id uuid)
    RETURNS TABLE (depth integer, cause uuid, event_type text, seq bigint, created_at timestamptz)
    LANGUAGE sql STABLE AS $$
    WITH RECURSIVE up AS (
        SELECT 0 AS depth, e.event_id, e.causation_id, e.event_type, e.seq, e.created_at
          FROM outbox.event e WHERE e.event_id = causes.event_id
        UNION ALL
        SELECT up.depth + 1, e.event_id, e.causation_id, e.event_type, e.seq, e.created_at
          FROM up JOIN outbox.event e ON e.event_id = up.causation_id
    ) CYCLE event_id SET again USING path
    SELECT depth, up.event_id, up.event_type, up.seq, up.created_at
      FROM up WHERE NOT again ORDER BY depth $$;
COMMENT ON FUNCTION outbox.causes IS 'The event itself (depth 0), what caused it (1), and so on.';

CREATE FUNCTION outbox.effects(event_id uuid)
    RETURNS TABLE (depth integer, effect uuid, cause uuid, event_type text, seq bigint,
                   created_at timestamptz)
    LANGUAGE sql STABLE AS $$
    WITH RECURSIVE down AS (
        SELECT 0 AS depth, e.event_id, e.causation_id, e.event_type, e.seq, e.created_at
          FROM outbox.event e WHERE e.event_id = effects.event_id
        UNION ALL
        SELECT down.depth + 1, e.event_id, e.causation_id, e.event_type, e.seq, e.created_at
          FROM down JOIN outbox.event e ON e.causation_id = down.event_id
    ) CYCLE event_id SET again USING path
    SELECT depth, down.event_id, down.causation_id, down.event_type, down.seq, down.created_at
      FROM down WHERE NOT again ORDER BY depth, seq $$;
COMMENT ON FUNCTION outbox.effects IS 'The event itself (depth 0), what it caused (1), and so on.';

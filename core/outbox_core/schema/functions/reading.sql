-- Reading: where an event came from and what it led to. Called by people.

CREATE OR REPLACE FUNCTION outbox.trace(correlation_id text) RETURNS SETOF outbox.event
    LANGUAGE sql STABLE AS $$
    SELECT e.* FROM outbox.event e WHERE e.correlation_id = trace.correlation_id ORDER BY e.seq $$;
COMMENT ON FUNCTION outbox.trace IS 'All events of a correlation id, in order.';

CREATE OR REPLACE FUNCTION outbox.causes(event_id uuid)
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

CREATE OR REPLACE FUNCTION outbox.effects(event_id uuid)
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

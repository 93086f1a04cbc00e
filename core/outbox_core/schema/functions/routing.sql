-- Routing: events that no relay subscribed to when they arrived. Called by relays at their start and
-- regularly.

-- Those who give a relay an event that is not new check afterwards that it has no other place. That takes
-- statements that see what others have committed meanwhile.
CREATE OR REPLACE FUNCTION outbox.require_read_committed() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'outbox: not at isolation level %', current_setting('transaction_isolation')
            USING ERRCODE = 'invalid_transaction_state',
                  HINT = 'Use READ COMMITTED, or reset default_transaction_isolation for this role.';
    END IF;
END $$;

-- Offers unmatched events to all relays that registered since. Returns how many were offered; run it until
-- that is less than the limit. By ctid, and without reading deliveries: those are keyed by relay, and
-- checking whether any relay has an event would scan all of them.
CREATE OR REPLACE FUNCTION outbox.route_unmatched(row_limit integer DEFAULT 1000) RETURNS integer
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS $$  -- planned in loops: ../planner.sql
DECLARE
    newest bigint := (SELECT max(version) FROM outbox.relay);
    asked tid[];
    served bigint[];
    relays integer[];
    made bigint[];
BEGIN
    PERFORM outbox.require_read_committed();
    SELECT array_agg(u.ctid) INTO asked FROM (
        SELECT ctid FROM outbox.unmatched WHERE version < newest
         ORDER BY version, seq LIMIT row_limit FOR UPDATE SKIP LOCKED) u;
    IF asked IS NULL THEN
        RETURN 0;
    END IF;
    WITH fits AS MATERIALIZED (
        SELECT r.id, e.seq, outbox.bytes_of(e.payload, e.headers) AS bytes,
               outbox.delivery_key(r.ordering = 'Key', e.ordering_key) AS key_hash,
               outbox.delivery_lane(r.ordering = 'Key', e.ordering_key, e.seq) AS lane,
               e.available_at
          FROM outbox.unmatched u JOIN outbox.event e ON e.seq = u.seq
          JOIN outbox.relay r ON r.version > u.version AND r.version <= newest
                             AND outbox.wants(r, e.event_type, e.tenant_id)
         WHERE u.ctid = ANY (asked)
    ), made AS (
        INSERT INTO outbox.delivery (relay_id, seq, bytes, key_hash, lane, hold, available_at)
        SELECT f.id, f.seq, f.bytes, f.key_hash, f.lane,
               'TIME',  -- its seq may lie below the relays' watermark
               greatest(f.available_at, now())
          FROM fits f WHERE NOT outbox.is_packed(f.id, f.seq)
            ON CONFLICT DO NOTHING
        RETURNING relay_id, seq)
    SELECT (SELECT array_agg(f.seq) FROM fits f), array_agg(m.relay_id ORDER BY m.relay_id, m.seq),
           array_agg(m.seq ORDER BY m.relay_id, m.seq)
      INTO served, relays, made FROM made m;
    -- One that a backfill gave the relay had a row when this statement began, and no row when it came to
    -- it, if it was claimed in between. Now it would have two places.
    IF EXISTS (SELECT 1 FROM unnest(relays, made) AS n (relay, seq)
                WHERE outbox.is_packed(n.relay, n.seq)) THEN
        RAISE EXCEPTION 'outbox: events that are routed are being claimed: try again'
            USING ERRCODE = 'serialization_failure';
    END IF;
    IF served IS NOT NULL THEN
        DELETE FROM outbox.unmatched u WHERE u.seq = ANY (served);
    END IF;
    UPDATE outbox.unmatched u SET version = newest WHERE u.ctid = ANY (asked);
    RETURN cardinality(asked);
END $$;

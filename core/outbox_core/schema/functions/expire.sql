-- Expiry: events that are too old. Called by relays whose retry policy has a maxAge.

-- Events that are next in line and older than max_age become DEAD. The age of an event that a person
-- replayed or rescheduled counts from that decision: otherwise yesterday's events would become DEAD as
-- soon as they are replayed. They pass through CLAIMED, as the lifecycle requires, in this transaction,
-- and no attempt is counted.
CREATE OR REPLACE FUNCTION outbox.expire(
    relay integer, name text, owner text, lanes smallint[], row_limit integer, floor bigint,
    max_age interval, block boolean
) RETURNS TABLE (seq bigint, event_id text) LANGUAGE plpgsql  -- planned in loops: ../planner.sql
    AS $$
#variable_conflict use_column
DECLARE
    old bigint[];
BEGIN
    WITH next AS (
        SELECT l.seq, l.age_from FROM unnest(lanes) AS own (lane), LATERAL (
            SELECT d.seq, d.age_from FROM outbox.delivery d
             WHERE d.relay_id = relay AND d.lane = own.lane
               AND d.state = 'PENDING' AND d.hold = 'NONE' AND d.seq > floor
             ORDER BY d.seq LIMIT row_limit) l
        UNION ALL
        (SELECT d.seq, d.age_from FROM outbox.delivery d
          WHERE d.relay_id = relay AND d.state = 'PENDING' AND d.hold = 'TIME'
            AND d.available_at <= now() AND d.lane = ANY (lanes)
          ORDER BY d.available_at LIMIT row_limit)
    )
    SELECT array_agg(n.seq) INTO old FROM next n JOIN outbox.event e ON e.seq = n.seq
     WHERE coalesce(n.age_from, e.created_at) < now() - max_age
       AND EXISTS (SELECT 1 FROM outbox.relay r WHERE r.id = relay AND r.name = expire.name);
    IF old IS NULL THEN
        RETURN;
    END IF;
    SELECT array_agg(l.seq) INTO old FROM (
        SELECT d.seq FROM outbox.rows_of(relay, old) o JOIN outbox.delivery d
            ON d.relay_id = o.relay_id AND d.seq = o.seq
         WHERE d.state = 'PENDING'
           AND (d.age_from IS NULL OR d.age_from < now() - max_age)  -- not replayed just now
           FOR UPDATE OF d SKIP LOCKED) l;
    UPDATE outbox.delivery d SET
        state = 'CLAIMED', hold = 'NONE', claimed_at = now(), claimed_by = owner,
        claim_token = 0, lease_until = now()
      FROM outbox.rows_of(relay, old) o
     WHERE d.relay_id = o.relay_id AND d.seq = o.seq;
    RETURN QUERY
    WITH dead AS (
        UPDATE outbox.delivery d SET
            state = 'DEAD',
            hold = CASE WHEN block AND d.key_hash IS NOT NULL THEN 'DEAD' ELSE 'NONE' END::outbox.hold,
            last_error = jsonb_build_object('class', 'expired', 'code', 'MAX_AGE', 'at', now(),
                             'text', format('older than the relay''s maxAge of %s', max_age)),
            claimed_at = NULL, claimed_by = NULL, claim_token = NULL, lease_until = NULL
          FROM outbox.rows_of(relay, old) o
         WHERE d.relay_id = o.relay_id AND d.seq = o.seq
        RETURNING d.seq)
    SELECT dead.seq, e.event_id::text FROM dead JOIN outbox.event e ON e.seq = dead.seq;
    PERFORM outbox.release_behind(relay, old);  -- if the dead do not block their keys
END $$;

-- The end of a claim: published, or not. Called by relays, also for claims of a process that died.

-- Published. Fenced by the claim's token: claims that were taken over meanwhile are not changed, but
-- returned. Deliveries of their own are found by key, because a renewal may move the row at this very
-- moment: by its ctid it would be missed, and stay claimed although it is published. Each is looked up by
-- its primary key: the list is written as in rows_of.sql. (And without `state = 'CLAIMED'`: the planner
-- would choose the index of claimed rows.)
CREATE OR REPLACE FUNCTION outbox.record_published(
    relay integer, fence bigint, seqs bigint[], results text[]
) RETURNS bigint[] LANGUAGE plpgsql AS $$  -- planned as those who call it: in loops
DECLARE
    packed bigint[];
    packed_results text[];
    rest bigint[];
    own bigint[] := seqs;  -- those with a row of their own
    own_results text[] := results;
    done integer := 0;
BEGIN
    SELECT b.seqs INTO packed FROM outbox.batch b
     WHERE b.token = fence AND b.relay_id + 0 = relay  -- + 0: not by the index of all batches of the relay
       FOR UPDATE;
    IF packed = seqs THEN  -- as almost always
        INSERT INTO outbox.published (token, relay_id, results) VALUES (fence, relay, results);
        own := NULL;
    ELSIF packed IS NOT NULL THEN
        SELECT array_agg(v.result ORDER BY v.seq) FILTER (WHERE v.is_packed),
               array_agg(v.seq) FILTER (WHERE NOT v.is_packed),
               array_agg(v.result) FILTER (WHERE NOT v.is_packed)
          INTO packed_results, own, own_results
          FROM (SELECT u.*, u.seq IN (SELECT unnest(packed)) AS is_packed
                  FROM unnest(seqs, results) AS u (seq, result)) v;
        IF packed_results IS NOT NULL THEN
            rest := outbox.without(packed, seqs);  -- stays claimed
            IF rest IS NOT NULL THEN
                PERFORM outbox.unpack(fence, rest);
            END IF;
            INSERT INTO outbox.published (token, relay_id, results) VALUES (fence, relay, packed_results);
        END IF;
    END IF;
    IF own IS NOT NULL THEN
        UPDATE outbox.delivery d SET
            state = 'PUBLISHED', published_at = now(), result = v.result, crashes = 0,
            claimed_at = NULL, claimed_by = NULL, claim_token = NULL, lease_until = NULL
          FROM (SELECT relay AS relay_id, u.* FROM unnest(own, own_results) AS u (seq, result)
                 WHERE u.seq BETWEEN 1 AND 9223372036854775807 OFFSET 0) v
         WHERE d.relay_id = v.relay_id AND d.seq = v.seq AND d.claim_token = fence;
        GET DIAGNOSTICS done = ROW_COUNT;
    END IF;
    IF EXISTS (SELECT 1 FROM outbox.delivery p WHERE p.relay_id = relay AND p.hold = 'KEY') THEN
        PERFORM outbox.release_behind(relay, seqs);
    END IF;
    IF own IS NULL OR done = cardinality(own) THEN
        RETURN '{}';
    END IF;
    -- What we wrote in a first try, whose answer was lost, does not count as lost.
    RETURN ARRAY(SELECT v.seq FROM unnest(own, own_results) AS v (seq, result)
                  WHERE NOT EXISTS (SELECT 1 FROM outbox.delivery_of(relay, v.seq) d
                                     WHERE d.state = 'PUBLISHED' AND d.result IS NOT DISTINCT FROM v.result));
END $$;

-- The same without a claim after it: the last batch of a process, and relays of the previous version.
CREATE OR REPLACE FUNCTION outbox.finish_published(
    relay integer, fence bigint, seqs bigint[], results text[]
) RETURNS SETOF bigint LANGUAGE plpgsql  -- planned in loops: ../planner.sql
    AS $$
BEGIN
    RETURN QUERY SELECT unnest(outbox.record_published(relay, fence, seqs, results));
END $$;

-- Not published: PENDING again, or DEAD, each with its own error. Returns the claims that were lost.
CREATE OR REPLACE FUNCTION outbox.finish_failed(
    relay integer, seqs bigint[], fences bigint[], states text[], holds text[],
    delays double precision[],  -- seconds from now until it is due
    refunds boolean[],          -- it does not count as an attempt: the budget is not changed
    crashed boolean[],          -- its lease expired
    errors text[]               -- {"class", "code", "text"} or null to keep the last one
) RETURNS SETOF bigint LANGUAGE plpgsql  -- planned in loops: ../planner.sql
    AS $$
DECLARE
    done bigint[];
BEGIN
    -- Those that were claimed in a batch become deliveries of their own, with an error of their own.
    PERFORM outbox.unpack(f.fence, seqs) FROM (SELECT DISTINCT unnest(fences) AS fence) f;
    WITH ended AS (
        UPDATE outbox.delivery d SET
            state = v.state::outbox.state,
            -- If the relay stopped ordering meanwhile, nothing waits for a key any more.
            hold = CASE WHEN d.key_hash IS NOT NULL THEN v.hold WHEN v.hold = 'KEY' THEN 'TIME'
                        WHEN v.hold = 'DEAD' THEN 'NONE' ELSE v.hold END::outbox.hold,
            available_at = CASE WHEN v.state = 'PENDING'
                                THEN now() + make_interval(secs => v.delay)
                                ELSE d.available_at END,
            attempts_base = d.attempts_base + v.refund::integer,
            crashes = CASE WHEN v.crash THEN d.crashes + 1 ELSE 0 END,
            last_error = coalesce(v.error::jsonb || jsonb_build_object('at', now()), d.last_error),
            claimed_at = NULL, claimed_by = NULL, claim_token = NULL, lease_until = NULL
          FROM (SELECT relay AS relay_id, u.*
                  FROM unnest(seqs, fences, states, holds, delays, refunds, crashed, errors)
                       AS u (seq, fence, state, hold, delay, refund, crash, error)
                 WHERE u.seq BETWEEN 1 AND 9223372036854775807 OFFSET 0) v
         WHERE d.relay_id = v.relay_id AND d.seq = v.seq AND d.claim_token = v.fence
        RETURNING d.seq)
    SELECT array_agg(e.seq) INTO done FROM ended e;
    IF EXISTS (SELECT 1 FROM outbox.delivery p WHERE p.relay_id = relay AND p.hold = 'KEY') THEN
        PERFORM outbox.release_behind(relay, seqs);
    END IF;
    RETURN QUERY SELECT s FROM unnest(seqs) s EXCEPT SELECT s FROM unnest(done) s;
END $$;

-- The end of a claim: published, or not. Called by relays, also for claims of a process that died.

-- Published. Fenced by the claim's token: claims that were taken over meanwhile are not changed, but
-- returned. By key, because a renewal may move the row at this very moment: by its ctid it would be
-- missed, and stay claimed although it is published. The list occurs twice, once for the index and once
-- for the join: so the plan reads only these rows, whatever the statistics are. (And without
-- `state = 'CLAIMED'`: the planner would choose the index of claimed rows.)
CREATE OR REPLACE FUNCTION outbox.finish_published(
    relay integer, fence bigint, seqs bigint[], results text[]
) RETURNS SETOF bigint LANGUAGE plpgsql  -- planned by hash: ../planner.sql
    AS $$
DECLARE
    done integer;
BEGIN
    UPDATE outbox.delivery d SET
        state = 'PUBLISHED', published_at = now(), result = v.result, crashes = 0,
        claimed_at = NULL, claimed_by = NULL, claim_token = NULL, lease_until = NULL
      FROM unnest(seqs, results) AS v (seq, result)
     WHERE d.relay_id = relay AND d.seq = ANY (seqs) AND d.seq = v.seq AND d.claim_token = fence;
    GET DIAGNOSTICS done = ROW_COUNT;
    IF EXISTS (SELECT 1 FROM outbox.delivery p WHERE p.relay_id = relay AND p.hold = 'KEY') THEN
        PERFORM outbox.release_behind(relay, seqs);
    END IF;
    IF done < cardinality(seqs) THEN
        -- What we wrote in a first try, whose answer was lost, does not count as lost.
        RETURN QUERY SELECT v.seq FROM unnest(seqs, results) AS v (seq, result)
          LEFT JOIN outbox.delivery d ON d.relay_id = relay AND d.seq = ANY (seqs) AND d.seq = v.seq
         WHERE d.result IS DISTINCT FROM v.result OR d.state::text <> 'PUBLISHED';
    END IF;
END $$;

-- Not published: PENDING again, or DEAD, each with its own error. Returns the claims that were lost.
CREATE OR REPLACE FUNCTION outbox.finish_failed(
    relay integer, seqs bigint[], fences bigint[], states text[], holds text[],
    delays double precision[],  -- seconds from now until it is due
    refunds boolean[],          -- it does not count as an attempt: the budget is not changed
    crashed boolean[],          -- its lease expired
    errors text[]               -- {"class", "code", "text"} or null to keep the last one
) RETURNS SETOF bigint LANGUAGE plpgsql  -- planned by hash: ../planner.sql
    AS $$
DECLARE
    done bigint[];
BEGIN
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
          FROM unnest(seqs, fences, states, holds, delays, refunds, crashed, errors)
               AS v (seq, fence, state, hold, delay, refund, crash, error)
         WHERE d.relay_id = relay AND d.seq = ANY (seqs) AND d.seq = v.seq
           AND d.claim_token = v.fence
        RETURNING d.seq)
    SELECT array_agg(e.seq) INTO done FROM ended e;
    IF EXISTS (SELECT 1 FROM outbox.delivery p WHERE p.relay_id = relay AND p.hold = 'KEY') THEN
        PERFORM outbox.release_behind(relay, seqs);
    END IF;
    RETURN QUERY SELECT s FROM unnest(seqs) s EXCEPT SELECT s FROM unnest(done) s;
END $$;

-- Renewal: extends a claim that takes long. Called by relays.

-- Extends the claims under the token `fence` by a lease. Returns how many were still ours.
CREATE OR REPLACE FUNCTION outbox.renew(relay integer, fence bigint, seqs bigint[], lease interval)
    RETURNS integer LANGUAGE plpgsql  -- planned in loops: ../planner.sql
    AS $$
DECLARE
    packed integer;
    done integer;
BEGIN
    UPDATE outbox.batch b SET lease_until = now() + lease
     WHERE b.token = fence AND b.relay_id + 0 = relay RETURNING cardinality(b.seqs) INTO packed;
    IF packed = cardinality(seqs) THEN
        RETURN packed;
    END IF;
    UPDATE outbox.delivery d SET lease_until = now() + lease
      FROM outbox.rows_of(relay, seqs) v
     WHERE d.relay_id = v.relay_id AND d.seq = v.seq AND d.claim_token = fence;
    GET DIAGNOSTICS done = ROW_COUNT;
    RETURN done + coalesce(packed, 0);
END $$;

-- Renewal: extends a claim that takes long. Called by relays.

-- Extends the claims under the token `fence` by a lease. Returns how many were still ours.
CREATE OR REPLACE FUNCTION outbox.renew(relay integer, fence bigint, seqs bigint[], lease interval)
    RETURNS integer LANGUAGE plpgsql  -- planned by index: ../planner.sql
    AS $$
DECLARE
    done integer;
BEGIN
    UPDATE outbox.delivery d SET lease_until = now() + lease
     WHERE d.relay_id = relay AND d.seq = ANY (seqs) AND d.claim_token = fence;
    GET DIAGNOSTICS done = ROW_COUNT;
    RETURN done;
END $$;

-- Renewal: a claim that takes long is kept. Called by relays.

-- The claims of `fence` are ours for longer. Returns how many still were.
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

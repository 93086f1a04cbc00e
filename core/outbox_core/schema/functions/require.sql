-- Requirements: what an installation may require of its producers. A requirement is a constraint: it
-- costs nothing while it is off, and old events stay as they are. To set it locks the table for a
-- moment, and producers queue up behind a session that waits for the lock. Called by the schema's owner.

CREATE OR REPLACE FUNCTION outbox.require(what text, required boolean DEFAULT true) RETURNS void
    LANGUAGE plpgsql SET lock_timeout = '2s' AS $$
BEGIN
    IF what NOT IN ('idempotency_key', 'correlation_id', 'known_cause') THEN
        RAISE EXCEPTION 'outbox: cannot require "%"', what USING ERRCODE = 'invalid_parameter_value',
            HINT = 'One of idempotency_key, correlation_id, known_cause.';
    END IF;
    EXECUTE format('ALTER TABLE outbox.event DROP CONSTRAINT IF EXISTS %I', what || '_is_required');
    IF required AND what = 'known_cause' THEN
        ALTER TABLE outbox.event ADD CONSTRAINT known_cause_is_required
            FOREIGN KEY (causation_id) REFERENCES outbox.event (event_id) NOT VALID;
    ELSIF required THEN
        EXECUTE format('ALTER TABLE outbox.event ADD CONSTRAINT %I CHECK (%I IS NOT NULL) NOT VALID',
                       what || '_is_required', what);
    END IF;
EXCEPTION WHEN lock_not_available THEN
    RAISE EXCEPTION 'outbox: outbox.event could not be locked within 2 seconds: nothing was changed'
        USING ERRCODE = 'lock_not_available',
              HINT = 'A transaction that has emitted an event is still open (pg_stat_activity, pg_locks). '
                     'Call it again when that has ended.';
END $$;
COMMENT ON FUNCTION outbox.require IS
    'Require idempotency_key, correlation_id or known_cause of new events. For the schema''s owner.';

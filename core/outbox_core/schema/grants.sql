-- Who may call which function. Applied after all functions, so that it covers new ones: PUBLIC may call
-- nothing; what is not listed here is for relays. The rights on tables are with the tables, in migrations/.

REVOKE ALL ON ALL FUNCTIONS IN SCHEMA outbox FROM PUBLIC;

DO $$
DECLARE
    f record;
BEGIN
    FOR f IN SELECT p.oid::regprocedure AS signature, p.proname AS name
               FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
              WHERE n.nspname = 'outbox' AND p.prorettype <> 'trigger'::regtype LOOP
        CASE
            WHEN f.name IN ('emit', 'first_twin', 'derive_idempotency_key', 'slot_of') THEN
                EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO outbox_producer', f.signature);
            WHEN f.name IN ('trace', 'causes', 'effects', 'lanes', 'delivery_of') THEN
                EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO outbox_reader, outbox_relay',
                               f.signature);
            WHEN f.name = 'require' THEN NULL;  -- for the owner only
            -- Including those that retire a relay: the relays' role can end any waiting event anyway.
            ELSE
                EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO outbox_relay', f.signature);
        END CASE;
    END LOOP;
END $$;

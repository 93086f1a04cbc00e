-- Who may do what. Roles belong to the whole server, so they may be there already.

DO $$
DECLARE
    wanted text;
BEGIN
    FOREACH wanted IN ARRAY ARRAY['outbox_producer', 'outbox_relay', 'outbox_reader'] LOOP
        BEGIN
            EXECUTE format('CREATE ROLE %I NOLOGIN', wanted);
        EXCEPTION
            WHEN duplicate_object OR unique_violation THEN NULL;
            WHEN insufficient_privilege THEN
                IF NOT EXISTS (SELECT 1 FROM pg_roles WHERE rolname = wanted) THEN
                    RAISE EXCEPTION 'outbox: role % is missing and % may not create it',
                        wanted, current_user USING ERRCODE = 'insufficient_privilege',
                        HINT = 'As an administrator: CREATE ROLE outbox_producer; '
                               'CREATE ROLE outbox_relay; CREATE ROLE outbox_reader;';
                END IF;
        END;
    END LOOP;
END $$;

REVOKE ALL ON ALL FUNCTIONS IN SCHEMA outbox FROM PUBLIC;
GRANT USAGE ON SCHEMA outbox TO outbox_producer, outbox_relay, outbox_reader;

-- Producers insert events. Not seq and created_at: those are the outbox's to set.
GRANT INSERT (event_id, event_type, payload, content_type, headers, metadata, partition_key,
              ordering_key, idempotency_key, tenant_id, correlation_id, causation_id,
              aggregate_type, aggregate_id, occurred_at, available_at, max_attempts)
    ON outbox.event TO outbox_producer;

GRANT SELECT ON outbox.event, outbox.delivery, outbox.relay, outbox.unmatched, outbox.holder,
    outbox.lane, outbox.audit, outbox.events, outbox.schema_version TO outbox_reader, outbox_relay;
GRANT INSERT, UPDATE ON outbox.delivery, outbox.relay TO outbox_relay;
GRANT UPDATE, DELETE ON outbox.unmatched TO outbox_relay;
GRANT INSERT, UPDATE, DELETE ON outbox.holder, outbox.lane TO outbox_relay;
GRANT INSERT ON outbox.audit TO outbox_relay;
GRANT SELECT ON SEQUENCE outbox.event_seq TO outbox_relay;

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
            WHEN f.name IN ('trace', 'causes', 'effects') THEN
                EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO outbox_reader, outbox_relay',
                               f.signature);
            WHEN f.name = 'require' THEN NULL;  -- the owner's
            ELSE
                EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO outbox_relay', f.signature);
        END CASE;
    END LOOP;
END $$;

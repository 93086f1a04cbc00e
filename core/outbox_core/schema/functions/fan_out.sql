-- Fan-out: a delivery for each relay that subscribes to an event. Called by the trigger event_fans_out, in
-- the producer's transaction; for events from before a relay registered, see routing.sql.

-- The size of an event in a relay's memory: headers as the text that a claim returns, because on disk they
-- may be compressed to a hundredth of it. Metadata stays in the database, except traceparent.
CREATE OR REPLACE FUNCTION outbox.bytes_of(payload bytea, headers jsonb) RETURNS integer
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$ SELECT octet_length(payload) + coalesce(octet_length(headers::text), 0) $$;

CREATE OR REPLACE FUNCTION outbox.wants(r outbox.relay, event_type text, tenant_id text) RETURNS boolean
    LANGUAGE sql STABLE PARALLEL SAFE
    AS $$ SELECT r.active
             AND (r.patterns IS NULL OR event_type LIKE ANY (r.patterns))
             AND (r.tenants IS NULL OR coalesce(tenant_id = ANY (r.tenants), false)) $$;

-- One delivery per relay that subscribes to the event, in the producer's transaction; unmatched events are
-- recorded. Only the first statement reads the relays, hence one snapshot of them: if the second read them
-- again, a relay could register in between that the first does not serve and the second does not count as
-- missed. The second runs only if no relay subscribes to everything: otherwise nothing is unmatched, and
-- even an INSERT of no rows costs a producer. `outbox.sentinel` is the reserved type of a record that is
-- kept and never published.
CREATE OR REPLACE FUNCTION outbox.event_fans_out() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    listeners text[];
    listener text;
    newest bigint;  -- registration; NULL if a relay subscribes to everything, as is `asked`
    asked outbox.relay[];
BEGIN
    WITH served AS (
        INSERT INTO outbox.delivery (relay_id, seq, bytes, key_hash, lane, hold, available_at)
        SELECT r.id, e.seq, outbox.bytes_of(e.payload, e.headers),
               outbox.delivery_key(r.ordering = 'Key', e.ordering_key),
               outbox.delivery_lane(r.ordering = 'Key', e.ordering_key, e.seq),
               CASE WHEN e.available_at > now() THEN 'TIME' ELSE 'NONE' END::outbox.hold,
               coalesce(e.available_at, now())
          FROM arrived e JOIN outbox.relay r ON outbox.wants(r, e.event_type, e.tenant_id)
         WHERE e.event_type <> 'outbox.sentinel'
    ), known AS (
        SELECT array_agg(r.name) FILTER (WHERE r.active AND r.notify) AS listeners,
               coalesce(max(r.version), 0) AS newest,
               coalesce(bool_or(r.active AND r.patterns IS NULL AND r.tenants IS NULL), false) AS everything
          FROM outbox.relay r
    )
    SELECT k.listeners, CASE WHEN NOT k.everything THEN k.newest END,
           CASE WHEN NOT k.everything THEN ARRAY(SELECT r FROM outbox.relay r WHERE r.active) END
      INTO listeners, newest, asked FROM known k;
    IF newest IS NOT NULL THEN
        INSERT INTO outbox.unmatched (seq, version)
        SELECT e.seq, newest FROM arrived e
         WHERE e.event_type <> 'outbox.sentinel'
           AND NOT EXISTS (SELECT 1 FROM unnest(asked) r
                            WHERE outbox.wants(r, e.event_type, e.tenant_id));
    END IF;
    IF listeners IS NOT NULL THEN
        FOREACH listener IN ARRAY listeners LOOP
            PERFORM pg_notify('outbox', listener);  -- a hint, sent once per transaction
        END LOOP;
    END IF;
    RETURN NULL;
END $$;

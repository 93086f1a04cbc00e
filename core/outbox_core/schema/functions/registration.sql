-- Registration: who receives which events. Called by a relay at its start.

CREATE OR REPLACE FUNCTION outbox.like_patterns(event_types text[]) RETURNS text[]
    LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN '*' = ANY (event_types) THEN NULL ELSE
        (SELECT array_agg(replace(replace(replace(replace(t, '\', '\\'), '%', '\%'), '_', '\_'),
                                  '*', '%'))
           FROM unnest(event_types) t) END $$;

-- The patterns that are matched are those of the registered types.
CREATE OR REPLACE FUNCTION outbox.relay_means_its_types() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.patterns IS NOT DISTINCT FROM outbox.like_patterns(NEW.event_types) THEN
        RETURN NEW;
    END IF;
    RAISE EXCEPTION 'outbox: patterns of relay % are not those of its event_types', NEW.name
        USING ERRCODE = 'restrict_violation',
              HINT = 'Change a subscription with outbox.register_relay, as a relay does at its start.';
END $$;

-- A relay that orders always has its lanes: without them nothing would be claimed.
CREATE OR REPLACE FUNCTION outbox.relay_has_its_lanes() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO outbox.lane (relay_id, lane) SELECT NEW.id, generate_series(0, outbox.lanes() - 1)
        ON CONFLICT DO NOTHING;
    RETURN NULL;
END $$;

-- Moves waiting deliveries to their lanes after a relay's ordering has changed: those that were in line get
-- hold = TIME, because their seqs may be below the watermark of a running relay. Also run regularly, with
-- a row_limit, for transactions that began before the change and committed after it.
CREATE OR REPLACE FUNCTION outbox.relane(relay integer, row_limit integer DEFAULT NULL) RETURNS integer
    LANGUAGE plpgsql AS $$
DECLARE
    ordered boolean := (SELECT r.ordering = 'Key' FROM outbox.relay r WHERE r.id = relay);
    low smallint := CASE WHEN ordered THEN -1 ELSE 0 END;
    high smallint := CASE WHEN ordered THEN -1 ELSE 32767 END;
    wrong tid[];
BEGIN
    IF row_limit IS NULL THEN
        SELECT array_agg(w.ctid) INTO wrong FROM (
            SELECT d.ctid FROM outbox.delivery d
             WHERE d.relay_id = relay AND d.state <> 'PUBLISHED' AND d.lane BETWEEN low AND high
               FOR UPDATE) w;
        -- Only now, because a claim that was not committed held them: what is in flight, also by that
        -- claim, becomes deliveries of their own, in the lanes of the current ordering.
        DELETE FROM outbox.batch b WHERE b.relay_id = relay;
    ELSE  -- these were inserted as new deliveries: so these two indexes have all of them
        wrong := ARRAY(SELECT d.ctid FROM outbox.delivery d
                        WHERE d.relay_id = relay AND d.state = 'PENDING' AND d.hold = 'NONE'
                          AND d.lane BETWEEN low AND high
                        LIMIT row_limit FOR UPDATE SKIP LOCKED);
        wrong := wrong || ARRAY(SELECT d.ctid FROM outbox.delivery d
                                 WHERE d.relay_id = relay AND d.state = 'PENDING'
                                   AND d.hold IN ('TIME', 'SUSPECT') AND d.lane BETWEEN low AND high
                                 LIMIT row_limit - cardinality(wrong) FOR UPDATE SKIP LOCKED);
        -- Put behind their key by a process that still ordered: nobody would find them by their key.
        wrong := wrong || ARRAY(SELECT d.ctid FROM outbox.delivery d
                                 WHERE d.relay_id = relay AND d.hold = 'KEY'
                                   AND (NOT ordered OR d.key_hash IS NULL)
                                 LIMIT row_limit - cardinality(wrong) FOR UPDATE SKIP LOCKED);
    END IF;
    UPDATE outbox.delivery d SET
        key_hash = outbox.delivery_key(ordered, e.ordering_key),
        lane = outbox.delivery_lane(ordered, e.ordering_key, d.seq),
        hold = CASE WHEN d.hold IN ('NONE', 'KEY') AND d.state = 'PENDING' THEN 'TIME'
                    WHEN d.hold = 'DEAD' THEN 'NONE' ELSE d.hold END
      FROM outbox.event e
     WHERE d.ctid = ANY (wrong) AND e.seq = d.seq;
    RETURN coalesce(cardinality(wrong), 0);
END $$;

-- Idempotent. A new or changed subscription gets the next version, drawn and committed under one
-- lock: so a transaction that saw version n saw every version below n.
CREATE OR REPLACE FUNCTION outbox.register_relay(
    relay text, event_types text[] DEFAULT '{*}', tenants text[] DEFAULT NULL,
    ordering text DEFAULT 'None', notify boolean DEFAULT false
) RETURNS integer LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    known outbox.relay;
    next_version bigint;
BEGIN
    SELECT * INTO known FROM outbox.relay WHERE name = register_relay.relay;
    IF known.active AND (known.event_types, known.tenants, known.ordering, known.notify)
       IS NOT DISTINCT FROM (register_relay.event_types, register_relay.tenants,
                             register_relay.ordering, register_relay.notify) THEN
        RETURN known.id;
    END IF;
    PERFORM pg_advisory_xact_lock(hashtextextended('outbox.register_relay', 0));
    SELECT * INTO known FROM outbox.relay WHERE name = register_relay.relay FOR UPDATE;
    SELECT coalesce(max(version), 0) + 1 INTO next_version FROM outbox.relay;
    INSERT INTO outbox.relay AS r (name, event_types, tenants, ordering, notify, patterns, version)
    VALUES (register_relay.relay, register_relay.event_types, register_relay.tenants,
            register_relay.ordering, register_relay.notify,
            outbox.like_patterns(register_relay.event_types), next_version)
    ON CONFLICT (name) DO UPDATE SET
        event_types = EXCLUDED.event_types, tenants = EXCLUDED.tenants,
        ordering = EXCLUDED.ordering, notify = EXCLUDED.notify, patterns = EXCLUDED.patterns,
        version = EXCLUDED.version, active = true
    RETURNING r.id INTO known.id;
    IF known.ordering <> register_relay.ordering THEN
        PERFORM outbox.relane(known.id);
    END IF;
    RETURN known.id;
END $$;

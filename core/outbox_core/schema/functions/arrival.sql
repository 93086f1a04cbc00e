-- Arrival: checks an event, waits for earlier transactions of its key, and draws its seq. Called by the
-- trigger event_arrives, in the producer's transaction. fan_out.sql decides which relays get it.

CREATE OR REPLACE FUNCTION outbox.is_headers(headers jsonb) RETURNS boolean
    LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
    SELECT CASE jsonb_typeof(headers)
        WHEN 'object' THEN NOT EXISTS (
            SELECT 1 FROM jsonb_each(headers) h
             WHERE jsonb_typeof(h.value) NOT IN ('string', 'null'))
        WHEN 'array' THEN NOT EXISTS (
            SELECT 1 FROM jsonb_array_elements(headers) h
             WHERE CASE WHEN jsonb_typeof(h) = 'array' THEN
                            jsonb_array_length(h) <> 2 OR jsonb_typeof(h->0) <> 'string'
                            OR jsonb_typeof(h->1) NOT IN ('string', 'null')
                        ELSE true END)
        ELSE false END $$;

-- The rules are in the trigger and not in CHECKs, because PostgreSQL parses every CHECK again for every
-- INSERT statement: that cost a producer more than storing the row.
CREATE OR REPLACE FUNCTION outbox.event_is_refused(rule text, hint text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'outbox: %', rule USING ERRCODE = 'check_violation', HINT = hint;
END $$;

CREATE OR REPLACE FUNCTION outbox.slot_is_missing(key text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'outbox: outbox.slot has no row %: the order within its keys would be lost',
        outbox.slot_of(key) USING ERRCODE = 'restrict_violation',
        HINT = 'As the schema''s owner: INSERT INTO outbox.slot SELECT generate_series(0, 65535) '
               'ON CONFLICT DO NOTHING;';
END $$;

CREATE OR REPLACE FUNCTION outbox.event_arrives() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NEW.event_type = '' OR NEW.event_type <> btrim(NEW.event_type, E' \t\r\n') THEN
        PERFORM outbox.event_is_refused(
            'event_type is empty, or has blanks around it', 'A stable name such as order.created.v2.');
    ELSIF position('://' IN NEW.event_type) > 0 THEN
        RAISE WARNING 'outbox: event_type "%" looks like an address', NEW.event_type
            USING HINT = 'Name what happened; the relay''s topic template decides where it goes.';
    END IF;
    -- One condition instead of seven: most events have none of these.
    IF num_nonnulls(NEW.headers, NEW.metadata, NEW.occurred_at, NEW.available_at, NEW.max_attempts,
                    NEW.idempotency_key, NEW.causation_id) > 0 THEN
        IF NEW.headers IS NOT NULL AND NOT outbox.is_headers(NEW.headers) THEN
            PERFORM outbox.event_is_refused(
                'headers are neither an object of strings nor an array of [name, value] pairs',
                'For example {"a": "1"}, or [["a", "1"], ["a", "2"]].');
        END IF;
        IF NEW.metadata IS NOT NULL AND jsonb_typeof(NEW.metadata) <> 'object' THEN
            PERFORM outbox.event_is_refused(
                'metadata is not a JSON object', 'For example {"source": "api"}.');
        END IF;
        IF NEW.occurred_at IS NOT NULL AND NOT outbox.in_calendar(NEW.occurred_at) THEN
            PERFORM outbox.event_is_refused(
                'occurred_at is not within the years 1 to 9999',
                'No consumer could read it; leave it out if the time is not known.');
        END IF;
        IF NEW.available_at IS NOT NULL AND NOT outbox.is_schedule(NEW.available_at) THEN
            PERFORM outbox.event_is_refused(
                'available_at is neither within the years 1 to 9999 nor infinity',
                'Leave it out to publish at once; infinity waits until a person decides.');
        END IF;
        IF NEW.max_attempts < 1 THEN
            PERFORM outbox.event_is_refused(
                'max_attempts is less than 1', 'Leave it out to use the relay''s.');
        END IF;
        IF NEW.idempotency_key IS NOT NULL THEN
            -- Duplicates queue up here, so that the second finds the first and is silently left out.
            PERFORM 1 FROM outbox.slot
              WHERE id = outbox.slot_of(coalesce(NEW.tenant_id, '') || E'\x1f' || NEW.idempotency_key)
                FOR NO KEY UPDATE;
            IF NOT FOUND THEN
                PERFORM outbox.slot_is_missing(coalesce(NEW.tenant_id, '') || E'\x1f' || NEW.idempotency_key);
            END IF;
            IF EXISTS (SELECT 1 FROM outbox.event
                        WHERE coalesce(tenant_id, '') = coalesce(NEW.tenant_id, '')
                          AND idempotency_key = NEW.idempotency_key) THEN
                RETURN NULL;
            END IF;
        END IF;
        IF NEW.causation_id IS NOT NULL THEN
            IF NEW.causation_id = NEW.event_id THEN
                PERFORM outbox.event_is_refused('an event does not cause itself',
                                                'causation_id is the id of an earlier event.');
            END IF;
            IF NEW.correlation_id IS NULL THEN
                SELECT correlation_id INTO NEW.correlation_id
                  FROM outbox.event WHERE event_id = NEW.causation_id;
            END IF;
            IF EXISTS (SELECT 1 FROM outbox.event WHERE causation_id = NEW.event_id)
               AND EXISTS (WITH RECURSIVE up AS (
                               SELECT event_id, causation_id FROM outbox.event
                                WHERE event_id = NEW.causation_id
                            UNION
                               SELECT e.event_id, e.causation_id
                                 FROM up JOIN outbox.event e ON e.event_id = up.causation_id)
                           SELECT 1 FROM up WHERE causation_id = NEW.event_id) THEN
                PERFORM outbox.event_is_refused(
                    format('causes form a circle: %s is already a cause of %s',
                           NEW.event_id, NEW.causation_id),
                    'causation_id is the id of an earlier event.');
            END IF;
        END IF;
    END IF;
    IF NEW.ordering_key IS NOT NULL THEN
        PERFORM 1 FROM outbox.slot WHERE id = outbox.slot_of(NEW.ordering_key) FOR NO KEY UPDATE;
        IF NOT FOUND THEN  -- producers would not wait for each other: order would be silently lost
            PERFORM outbox.slot_is_missing(NEW.ordering_key);
        END IF;
    ELSE
        -- The relays' watermark relies on it: a transaction has its id before it draws a seq.
        PERFORM pg_current_xact_id();
    END IF;
    NEW.seq := nextval('outbox.event_seq');  -- drawn under the lock: commit order within the key
    NEW.created_at := clock_timestamp();
    RETURN NEW;
END $$;

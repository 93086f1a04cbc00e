-- The rules, held by the database itself: triggers that are ENABLE ALWAYS, so that neither a
-- superuser's UPDATE nor session_replication_role gets around them.

CREATE FUNCTION outbox.key_hash(key text) RETURNS bigint
    LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
    AS $$ SELECT hashtextextended(key, 0) $$;

CREATE FUNCTION outbox.slot_of(key text) RETURNS integer
    LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
    AS $$ SELECT (hashtextextended(key, 0) & 65535)::integer $$;
COMMENT ON FUNCTION outbox.slot_of IS
    'The lock that an ordering key takes. Bulk inserts that ORDER BY it cannot deadlock each other.';

-- 64 lanes: more processes than a database can feed, and few enough to look into each.
CREATE FUNCTION outbox.lane_of(key_hash bigint, seq bigint) RETURNS smallint
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$ SELECT (coalesce(key_hash, seq) & 63)::smallint $$;

-- What an event weighs in a relay's memory: headers as the text that a claim brings, because on disk
-- they may be compressed to a hundredth of it. Metadata stays in the database, but for traceparent.
CREATE FUNCTION outbox.bytes_of(payload bytea, headers jsonb) RETURNS integer
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$ SELECT octet_length(payload) + coalesce(octet_length(headers::text), 0) $$;

-- An event arrives ---------------------------------------------------------------------------

CREATE FUNCTION outbox.is_headers(headers jsonb) RETURNS boolean
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

-- A time that the relays' calendar has, in every time zone. (Not STRICT: such a one is not inlined.)
CREATE FUNCTION outbox.in_calendar(at timestamptz) RETURNS boolean
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$ SELECT at >= timestamptz '0001-01-02 00:00+00' AND at < timestamptz '9999-12-31 00:00+00' $$;

-- What an event may wait for: such a time, or until somebody decides.
CREATE FUNCTION outbox.is_schedule(at timestamptz) RETURNS boolean
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$ SELECT at >= timestamptz '0001-01-02 00:00+00'
             AND (at < timestamptz '9999-12-31 00:00+00' OR at = timestamptz 'infinity') $$;

-- In the trigger and not in CHECKs, because PostgreSQL parses every CHECK anew for every INSERT
-- statement: that cost a producer more than storing the row.
CREATE FUNCTION outbox.event_is_refused(rule text, hint text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'outbox: %', rule USING ERRCODE = 'check_violation', HINT = hint;
END $$;

CREATE FUNCTION outbox.slot_is_missing(key text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'outbox: outbox.slot has no row %: events of a key could not be kept apart',
        outbox.slot_of(key) USING ERRCODE = 'restrict_violation',
        HINT = 'As the schema''s owner: INSERT INTO outbox.slot SELECT generate_series(0, 65535) '
               'ON CONFLICT DO NOTHING;';
END $$;

CREATE FUNCTION outbox.event_arrives() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NEW.event_type = '' OR NEW.event_type <> btrim(NEW.event_type, E' \t\r\n') THEN
        PERFORM outbox.event_is_refused(
            'event_type is empty, or has blanks around it', 'A stable name such as order.created.v2.');
    ELSIF position('://' IN NEW.event_type) > 0 THEN
        RAISE WARNING 'outbox: event_type "%" looks like an address', NEW.event_type
            USING HINT = 'Name what happened; where it goes is the relay''s topic template.';
    END IF;
    IF NEW.headers IS NOT NULL AND NOT outbox.is_headers(NEW.headers) THEN
        PERFORM outbox.event_is_refused(
            'headers are neither an object of strings nor an array of [name, value] pairs',
            'For example {"a": "1"}, or [["a", "1"], ["a", "2"]].');
    END IF;
    IF NEW.metadata IS NOT NULL AND jsonb_typeof(NEW.metadata) <> 'object' THEN
        PERFORM outbox.event_is_refused('metadata is not a JSON object', 'For example {"source": "api"}.');
    END IF;
    IF NEW.occurred_at IS NOT NULL AND NOT outbox.in_calendar(NEW.occurred_at) THEN
        PERFORM outbox.event_is_refused(
            'occurred_at is not within the years 1 to 9999',
            'No consumer could read it; leave it out where the time is not known.');
    END IF;
    IF NEW.available_at IS NOT NULL AND NOT outbox.is_schedule(NEW.available_at) THEN
        PERFORM outbox.event_is_refused(
            'available_at is neither within the years 1 to 9999 nor infinity',
            'Leave it out for at once; infinity waits until somebody decides.');
    END IF;
    IF NEW.max_attempts < 1 THEN
        PERFORM outbox.event_is_refused('max_attempts is less than 1', 'Leave it out for the relay''s.');
    END IF;
    IF NEW.idempotency_key IS NOT NULL THEN
        -- Twins queue up here, so that the second finds the first and is left out in silence.
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
    IF NEW.ordering_key IS NOT NULL THEN
        PERFORM 1 FROM outbox.slot WHERE id = outbox.slot_of(NEW.ordering_key) FOR NO KEY UPDATE;
        IF NOT FOUND THEN  -- nobody would wait for anybody, and order would be lost in silence
            PERFORM outbox.slot_is_missing(NEW.ordering_key);
        END IF;
    ELSE
        -- The relays' watermark counts on it: a transaction has its id before it draws a seq.
        PERFORM pg_current_xact_id();
    END IF;
    NEW.seq := nextval('outbox.event_seq');  -- drawn under the lock: commit order within the key
    NEW.created_at := clock_timestamp();
    RETURN NEW;
END $$;

CREATE TRIGGER event_arrives BEFORE INSERT ON outbox.event
    FOR EACH ROW EXECUTE FUNCTION outbox.event_arrives();
ALTER TABLE outbox.event ENABLE ALWAYS TRIGGER event_arrives;

CREATE FUNCTION outbox.wants(r outbox.relay, event_type text, tenant_id text) RETURNS boolean
    LANGUAGE sql STABLE PARALLEL SAFE
    AS $$ SELECT r.active
             AND (r.patterns IS NULL OR event_type LIKE ANY (r.patterns))
             AND (r.tenants IS NULL OR coalesce(tenant_id = ANY (r.tenants), false)) $$;

-- One delivery per relay that wants the event, in the producer's transaction; who is wanted by
-- nobody is remembered. One statement, hence one view of who is registered: between two, a relay
-- could register that the first does not serve and the second does not miss. `outbox.sentinel` is
-- the reserved type of a record that is kept and never published.
CREATE FUNCTION outbox.event_fans_out() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    listeners text[];
    listener text;
BEGIN
    WITH served AS (
        INSERT INTO outbox.delivery (relay_id, seq, bytes, key_hash, lane, hold, available_at)
        SELECT r.id, e.seq, outbox.bytes_of(e.payload, e.headers),
               CASE r.ordering WHEN 'Key' THEN outbox.key_hash(e.ordering_key) END,
               CASE r.ordering WHEN 'Key'
                    THEN outbox.lane_of(outbox.key_hash(e.ordering_key), e.seq) ELSE -1 END,
               CASE WHEN e.available_at > now() THEN 'TIME' ELSE 'NONE' END::outbox.hold,
               coalesce(e.available_at, now())
          FROM arrived e JOIN outbox.relay r ON outbox.wants(r, e.event_type, e.tenant_id)
         WHERE e.event_type <> 'outbox.sentinel'
    ), missed AS (
        INSERT INTO outbox.unmatched (seq, version)
        SELECT e.seq, (SELECT coalesce(max(r.version), 0) FROM outbox.relay r)
          FROM arrived e
         WHERE e.event_type <> 'outbox.sentinel'
           -- looked at once, not per event: where a relay wants everything there is no more to do
           AND NOT (SELECT coalesce(bool_or(r.patterns IS NULL AND r.tenants IS NULL), false)
                      FROM outbox.relay r WHERE r.active)
           AND NOT EXISTS (SELECT 1 FROM outbox.relay r
                            WHERE outbox.wants(r, e.event_type, e.tenant_id))
    )
    SELECT array_agg(r.name) INTO listeners FROM outbox.relay r WHERE r.notify AND r.active;
    IF listeners IS NOT NULL THEN
        FOREACH listener IN ARRAY listeners LOOP
            PERFORM pg_notify('outbox', listener);  -- a hint, sent once per transaction
        END LOOP;
    END IF;
    RETURN NULL;
END $$;

CREATE TRIGGER event_fans_out AFTER INSERT ON outbox.event
    REFERENCING NEW TABLE AS arrived
    FOR EACH STATEMENT EXECUTE FUNCTION outbox.event_fans_out();
ALTER TABLE outbox.event ENABLE ALWAYS TRIGGER event_fans_out;

-- Nothing about an event changes -------------------------------------------------------------

CREATE FUNCTION outbox.event_is_immutable() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'outbox: events are immutable: % of outbox.event is not allowed', TG_OP
        USING ERRCODE = 'restrict_violation',
              HINT = 'A correction is a new event with causation_id = the id of the old one.';
END $$;

CREATE TRIGGER event_is_immutable BEFORE UPDATE OR DELETE ON outbox.event
    FOR EACH ROW EXECUTE FUNCTION outbox.event_is_immutable();
CREATE TRIGGER event_is_not_truncated BEFORE TRUNCATE ON outbox.event
    FOR EACH STATEMENT EXECUTE FUNCTION outbox.event_is_immutable();
ALTER TABLE outbox.event ENABLE ALWAYS TRIGGER event_is_immutable;
ALTER TABLE outbox.event ENABLE ALWAYS TRIGGER event_is_not_truncated;

-- A delivery moves along the lifecycle only --------------------------------------------------

CREATE FUNCTION outbox.delivery_starts_pending() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'outbox: a delivery starts as PENDING with no attempts, not as % with %',
        NEW.state, NEW.attempts USING ERRCODE = 'restrict_violation';
END $$;
CREATE TRIGGER delivery_starts_pending BEFORE INSERT ON outbox.delivery FOR EACH ROW
    WHEN (NEW.state <> 'PENDING' OR NEW.attempts <> 0 OR NEW.hold = 'DEAD')
    EXECUTE FUNCTION outbox.delivery_starts_pending();

CREATE FUNCTION outbox.delivery_keeps_the_rules() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    rule text := CASE
        WHEN (NEW.relay_id, NEW.seq) IS DISTINCT FROM (OLD.relay_id, OLD.seq)
            THEN 'a delivery keeps its relay and its event'
        WHEN NEW.attempts < OLD.attempts
            THEN format('attempts never fall (%s to %s)', OLD.attempts, NEW.attempts)
        WHEN NEW.attempts_base < OLD.attempts_base
            THEN format('attempts_base never falls (%s to %s)', OLD.attempts_base, NEW.attempts_base)
        WHEN NEW.attempts_base > NEW.attempts
            THEN format('attempts_base (%s) is at most attempts (%s)', NEW.attempts_base, NEW.attempts)
        WHEN NEW.hold <> 'NONE' AND NEW.state <> CASE NEW.hold WHEN 'DEAD' THEN 'DEAD'
                                                              ELSE 'PENDING' END::outbox.state
            THEN format('hold %s does not go with state %s', NEW.hold, NEW.state)
        WHEN NEW.hold = 'KEY' AND NEW.key_hash IS NULL
            THEN 'hold KEY goes with a key: nobody would ever let go on what has none'
        WHEN NEW.state = 'PENDING' AND NEW.hold = 'NONE'
             AND (OLD.state <> 'PENDING' OR OLD.hold NOT IN ('NONE', 'TIME'))
            THEN 'what comes back does so with hold TIME: in line a relay may not look for it any more'
        WHEN NEW.available_at <> OLD.available_at AND NOT outbox.is_schedule(NEW.available_at)
            THEN 'available_at is within the years 1 to 9999, or infinity'
        WHEN NEW.state = 'PENDING' AND NEW.hold = 'NONE' AND NEW.available_at = 'infinity'
            THEN 'what is in line is due: available_at infinity goes with hold TIME'
        WHEN NEW.age_from IS DISTINCT FROM OLD.age_from AND NOT outbox.in_calendar(NEW.age_from)
            THEN 'age_from is within the years 1 to 9999'
        WHEN NEW.attempts > OLD.attempts AND NOT (OLD.state = 'PENDING' AND NEW.state = 'CLAIMED'
                                                  AND NEW.attempts = OLD.attempts + 1)
            THEN 'attempts grow by one, and only in a claim'
        WHEN OLD.state = NEW.state AND NEW.published_at IS DISTINCT FROM OLD.published_at
            THEN 'published_at does not change'
        WHEN OLD.state = NEW.state AND NEW.claimed_at IS DISTINCT FROM OLD.claimed_at
            THEN 'claimed_at does not change within a claim; lease_until is what is renewed'
        WHEN NEW.state <> OLD.state AND NEW.state <> ALL (
                 CASE OLD.state WHEN 'PENDING' THEN '{CLAIMED}'
                                WHEN 'CLAIMED' THEN '{PENDING, PUBLISHED, DEAD}'
                                ELSE '{PENDING}' END::outbox.state[])
            THEN format('%s does not become %s', OLD.state, NEW.state)
        WHEN NEW.previous_published_at IS DISTINCT FROM
                 CASE WHEN OLD.state = 'PUBLISHED' AND NEW.state = 'PENDING' THEN OLD.published_at
                      ELSE OLD.previous_published_at END
            THEN 'previous_published_at is the published_at that a replay took away'
        WHEN OLD.state = 'PENDING' AND NEW.state = 'CLAIMED' AND NEW.available_at > now()
            THEN format('not to be claimed before its available_at (%s)', NEW.available_at)
    END;
BEGIN
    IF rule IS NULL THEN
        RETURN NEW;
    END IF;
    RAISE EXCEPTION 'outbox: %', rule USING ERRCODE = 'restrict_violation',
        DETAIL = format('relay %s, seq %s', OLD.relay_id, OLD.seq),
        HINT = 'PENDING > CLAIMED > PUBLISHED, PENDING or DEAD; PUBLISHED, DEAD > PENDING by replay.';
END $$;

-- The two moves of an ordinary life are seen to be right by a condition, which is compiled and costs
-- next to nothing per row; all others are judged by the function. The condition is short, and what
-- is seldom written has a trigger of its own, because every UPDATE statement parses it anew.
CREATE TRIGGER delivery_keeps_the_rules
    BEFORE UPDATE OF state, hold, attempts, available_at, claimed_at, published_at
    ON outbox.delivery FOR EACH ROW
    WHEN (NOT (NEW.hold = 'NONE' AND CASE OLD.state
        WHEN 'PENDING' THEN NEW.state = 'CLAIMED' AND NEW.attempts = OLD.attempts + 1
                            AND NEW.available_at <= now() AND isfinite(NEW.available_at)
        WHEN 'CLAIMED' THEN NEW.state = 'PUBLISHED' AND NEW.attempts = OLD.attempts
                            AND NEW.available_at = OLD.available_at
        ELSE false END))
    EXECUTE FUNCTION outbox.delivery_keeps_the_rules();
CREATE TRIGGER delivery_keeps_its_past
    BEFORE UPDATE OF seq, relay_id, attempts_base, previous_published_at, age_from
    ON outbox.delivery FOR EACH ROW EXECUTE FUNCTION outbox.delivery_keeps_the_rules();

-- Which lane and key follows from the event; -1 and NULL where the relay does not order. Not checked
-- where they are inserted, which would cost every producer: deliveries are made by the trigger above and
-- by functions. Without planner settings of its own, which cost more than the look-up by primary key.
CREATE FUNCTION outbox.delivery_keeps_its_lane() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    hash bigint := (SELECT outbox.key_hash(e.ordering_key) FROM outbox.event e WHERE e.seq = NEW.seq);
BEGIN
    IF NEW.lane = outbox.lane_of(hash, NEW.seq) AND NEW.key_hash IS NOT DISTINCT FROM hash THEN
        RETURN NEW;
    END IF;
    RAISE EXCEPTION 'outbox: lane % and key_hash % are not those of the event''s ordering key',
        NEW.lane, coalesce(NEW.key_hash::text, 'NULL') USING ERRCODE = 'restrict_violation',
        DETAIL = format('relay %s, seq %s', NEW.relay_id, NEW.seq),
        HINT = 'lane_of(key_hash(ordering_key), seq) where the relay orders, else -1 and NULL.';
END $$;
CREATE TRIGGER delivery_keeps_its_lane BEFORE UPDATE OF lane, key_hash ON outbox.delivery FOR EACH ROW
    WHEN ((NEW.lane <> OLD.lane OR NEW.key_hash IS DISTINCT FROM OLD.key_hash)
          AND NOT (NEW.lane = -1 AND NEW.key_hash IS NULL AND NEW.hold <> 'KEY'))
    EXECUTE FUNCTION outbox.delivery_keeps_its_lane();

CREATE FUNCTION outbox.delivery_is_kept() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' AND NOT EXISTS (SELECT 1 FROM outbox.relay WHERE id = OLD.relay_id AND active)
    THEN
        RETURN OLD;
    END IF;
    RAISE EXCEPTION 'outbox: % of outbox.delivery is not allowed: its event would be lost to the relay',
        TG_OP USING ERRCODE = 'restrict_violation',
        HINT = 'An event that must not go out is declared dead: outbox-relay declare-dead EVENT --reason ...';
END $$;
CREATE TRIGGER delivery_is_kept BEFORE DELETE ON outbox.delivery
    FOR EACH ROW EXECUTE FUNCTION outbox.delivery_is_kept();
CREATE TRIGGER delivery_is_not_truncated BEFORE TRUNCATE ON outbox.delivery
    FOR EACH STATEMENT EXECUTE FUNCTION outbox.delivery_is_kept();
ALTER TABLE outbox.delivery ENABLE ALWAYS TRIGGER delivery_starts_pending;
ALTER TABLE outbox.delivery ENABLE ALWAYS TRIGGER delivery_keeps_the_rules;
ALTER TABLE outbox.delivery ENABLE ALWAYS TRIGGER delivery_keeps_its_past;
ALTER TABLE outbox.delivery ENABLE ALWAYS TRIGGER delivery_keeps_its_lane;
ALTER TABLE outbox.delivery ENABLE ALWAYS TRIGGER delivery_is_kept;
ALTER TABLE outbox.delivery ENABLE ALWAYS TRIGGER delivery_is_not_truncated;

-- What nobody wanted is kept until somebody has it --------------------------------------------

CREATE FUNCTION outbox.unmatched_is_kept() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' AND EXISTS (
        SELECT 1 FROM outbox.relay r JOIN outbox.delivery d ON d.relay_id = r.id AND d.seq = OLD.seq)
    THEN
        RETURN OLD;
    END IF;
    RAISE EXCEPTION 'outbox: % of outbox.unmatched is not allowed: no relay would ever get the event',
        TG_OP USING ERRCODE = 'restrict_violation',
        HINT = 'It goes when a relay that wants the event has registered.';
END $$;
CREATE TRIGGER unmatched_is_kept BEFORE DELETE ON outbox.unmatched
    FOR EACH ROW EXECUTE FUNCTION outbox.unmatched_is_kept();
CREATE TRIGGER unmatched_keeps_its_event BEFORE UPDATE ON outbox.unmatched
    FOR EACH ROW WHEN (NEW.seq <> OLD.seq OR NEW.version < OLD.version)
    EXECUTE FUNCTION outbox.unmatched_is_kept();
CREATE TRIGGER unmatched_is_not_truncated BEFORE TRUNCATE ON outbox.unmatched
    FOR EACH STATEMENT EXECUTE FUNCTION outbox.unmatched_is_kept();
ALTER TABLE outbox.unmatched ENABLE ALWAYS TRIGGER unmatched_is_kept;
ALTER TABLE outbox.unmatched ENABLE ALWAYS TRIGGER unmatched_keeps_its_event;
ALTER TABLE outbox.unmatched ENABLE ALWAYS TRIGGER unmatched_is_not_truncated;

-- The slots are always all there -------------------------------------------------------------
-- Inserting one that is missing is the cure, and the table's CHECK bounds it.

CREATE FUNCTION outbox.slot_is_kept() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'outbox: % of outbox.slot is not allowed: producers of a key wait for each other there',
        TG_OP USING ERRCODE = 'restrict_violation';
END $$;
CREATE TRIGGER slot_is_kept BEFORE UPDATE OR DELETE OR TRUNCATE ON outbox.slot
    FOR EACH STATEMENT EXECUTE FUNCTION outbox.slot_is_kept();
ALTER TABLE outbox.slot ENABLE ALWAYS TRIGGER slot_is_kept;

-- The audit only grows -----------------------------------------------------------------------

CREATE FUNCTION outbox.audit_only_grows() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'outbox: % of outbox.audit is not allowed: it only grows', TG_OP
        USING ERRCODE = 'restrict_violation';
END $$;
CREATE TRIGGER audit_only_grows BEFORE UPDATE OR DELETE OR TRUNCATE ON outbox.audit
    FOR EACH STATEMENT EXECUTE FUNCTION outbox.audit_only_grows();
ALTER TABLE outbox.audit ENABLE ALWAYS TRIGGER audit_only_grows;

-- What an installation may require of its producers ------------------------------------------
-- A requirement is a constraint: it costs nothing while it is off, and old events stay as they are.
-- It needs the table for a moment, and every producer queues up behind whoever waits for that.

CREATE FUNCTION outbox.require(what text, required boolean DEFAULT true) RETURNS void
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
    RAISE EXCEPTION 'outbox: outbox.event was not free within 2 seconds: nothing was changed'
        USING ERRCODE = 'lock_not_available',
              HINT = 'A transaction that has emitted is open (pg_stat_activity, pg_locks). '
                     'Call it again when that has ended.';
END $$;
COMMENT ON FUNCTION outbox.require IS
    'Require idempotency_key, correlation_id or known_cause of new events. For the schema''s owner.';

-- emit -----------------------------------------------------------------------------------------

-- With its owner's rights, because producers may not read events. emit() itself has its caller's:
-- INSERT is granted, and changing rights and search_path for every call is not free.
CREATE FUNCTION outbox.first_twin(tenant_id text, idempotency_key text) RETURNS uuid
    LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT e.event_id FROM outbox.event e
     WHERE coalesce(e.tenant_id, '') = coalesce(first_twin.tenant_id, '')
       AND e.idempotency_key = first_twin.idempotency_key $$;

CREATE FUNCTION outbox.emit(
    event_type text, payload bytea, ordering_key text DEFAULT NULL, headers jsonb DEFAULT NULL,
    idempotency_key text DEFAULT NULL, event_id uuid DEFAULT NULL, partition_key text DEFAULT NULL,
    aggregate_type text DEFAULT NULL, aggregate_id text DEFAULT NULL, tenant_id text DEFAULT NULL,
    correlation_id text DEFAULT NULL, causation_id uuid DEFAULT NULL, metadata jsonb DEFAULT NULL,
    content_type text DEFAULT NULL, occurred_at timestamptz DEFAULT NULL,
    available_at timestamptz DEFAULT NULL, max_attempts integer DEFAULT NULL
) RETURNS uuid LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    id uuid := coalesce(emit.event_id, gen_random_uuid());
BEGIN
    INSERT INTO outbox.event (
        event_id, event_type, payload, ordering_key, headers, idempotency_key, partition_key,
        aggregate_type, aggregate_id, tenant_id, correlation_id, causation_id, metadata,
        content_type, occurred_at, available_at, max_attempts)
    VALUES (
        id, emit.event_type, emit.payload, emit.ordering_key, emit.headers, emit.idempotency_key,
        emit.partition_key, emit.aggregate_type, emit.aggregate_id, emit.tenant_id,
        emit.correlation_id, emit.causation_id, emit.metadata, emit.content_type,
        emit.occurred_at, emit.available_at, emit.max_attempts);
    IF NOT FOUND THEN  -- a twin: the first one's id is the answer
        id := outbox.first_twin(emit.tenant_id, emit.idempotency_key);
    END IF;
    RETURN id;
END $$;
COMMENT ON FUNCTION outbox.emit(text, bytea, text, jsonb, text, uuid, text, text, text, text, text,
    uuid, jsonb, text, timestamptz, timestamptz, integer) IS
    'Add an event to this transaction; returns its id, or the first one''s for a known idempotency key.';

CREATE FUNCTION outbox.emit(
    event_type text, payload jsonb, ordering_key text DEFAULT NULL, headers jsonb DEFAULT NULL,
    idempotency_key text DEFAULT NULL, event_id uuid DEFAULT NULL, partition_key text DEFAULT NULL,
    aggregate_type text DEFAULT NULL, aggregate_id text DEFAULT NULL, tenant_id text DEFAULT NULL,
    correlation_id text DEFAULT NULL, causation_id uuid DEFAULT NULL, metadata jsonb DEFAULT NULL,
    content_type text DEFAULT 'application/json', occurred_at timestamptz DEFAULT NULL,
    available_at timestamptz DEFAULT NULL, max_attempts integer DEFAULT NULL
) RETURNS uuid LANGUAGE sql AS $$
    SELECT outbox.emit(
        event_type, convert_to(payload::text, 'UTF8'), ordering_key, headers, idempotency_key,
        event_id, partition_key, aggregate_type, aggregate_id, tenant_id, correlation_id,
        causation_id, metadata, content_type, occurred_at, available_at, max_attempts) $$;

-- A quoted literal without a type is text: without this overload such a call would be ambiguous.
CREATE FUNCTION outbox.emit(
    event_type text, payload text, ordering_key text DEFAULT NULL, headers jsonb DEFAULT NULL,
    idempotency_key text DEFAULT NULL, event_id uuid DEFAULT NULL, partition_key text DEFAULT NULL,
    aggregate_type text DEFAULT NULL, aggregate_id text DEFAULT NULL, tenant_id text DEFAULT NULL,
    correlation_id text DEFAULT NULL, causation_id uuid DEFAULT NULL, metadata jsonb DEFAULT NULL,
    content_type text DEFAULT NULL, occurred_at timestamptz DEFAULT NULL,
    available_at timestamptz DEFAULT NULL, max_attempts integer DEFAULT NULL
) RETURNS uuid LANGUAGE sql AS $$
    SELECT outbox.emit(
        event_type, convert_to(payload, 'UTF8'), ordering_key, headers, idempotency_key,
        event_id, partition_key, aggregate_type, aggregate_id, tenant_id, correlation_id,
        causation_id, metadata, content_type, occurred_at, available_at, max_attempts) $$;

CREATE FUNCTION outbox.derive_idempotency_key(
    aggregate_type text, aggregate_id text, event_type text, payload bytea
) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT concat_ws(':', aggregate_type, aggregate_id, event_type,
                     left(encode(sha256(payload), 'hex'), 32)) $$;
COMMENT ON FUNCTION outbox.derive_idempotency_key IS
    'A deterministic key: the same fact about the same aggregate gives the same key.';

-- Retirement: the one way in which a relay ends for good, and what waits for it with it. Its row
-- stays, under another name, because its deliveries tell what it published and what died. Whoever
-- registers under the old name later is another relay, with an id of its own: so a process of the
-- old one that was forgotten somewhere cannot touch the new one's events.

ALTER TABLE outbox.relay ADD COLUMN retirement bigint;
COMMENT ON COLUMN outbox.relay.retirement IS
    'The entry of outbox.audit that says who retired it and why; NULL = it is not retired.';

-- What is done to a relay is about no single event.
ALTER TABLE outbox.audit ALTER COLUMN event_id DROP NOT NULL, ALTER COLUMN seq DROP NOT NULL;
ALTER TABLE outbox.audit ADD CONSTRAINT audit_names_what_it_is_about
    CHECK (num_nulls(event_id, seq) = CASE WHEN action IN ('retire', 'drop') THEN 2 ELSE 0 END);

-- The rules ------------------------------------------------------------------------------------

CREATE FUNCTION outbox.relay_is_kept() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    rule text;
BEGIN
    IF TG_OP <> 'UPDATE' THEN
        rule := format('%s of outbox.relay is not allowed: nobody would know whose its deliveries are',
                       TG_OP);
    ELSIF NEW.id <> OLD.id THEN
        rule := 'a relay keeps its id';
    ELSIF OLD.retirement IS NOT NULL THEN
        rule := format('relay %s is retired, for good', OLD.name);
    ELSIF NEW.retirement IS NOT NULL AND (NEW.active OR NOT EXISTS (
              SELECT 1 FROM outbox.audit a
               WHERE a.id = NEW.retirement AND a.action = 'retire' AND a.relay = OLD.name
                 AND (a.after->>'relay_id')::integer = OLD.id)) THEN
        rule := 'a relay is retired with an entry in the audit, and is not active any more';
    ELSE
        RETURN NEW;
    END IF;
    RAISE EXCEPTION 'outbox: %', rule USING ERRCODE = 'restrict_violation',
        HINT = 'A relay that is not wanted any more is retired: outbox-relay retire --relay NAME --reason ...';
END $$;
CREATE TRIGGER relay_is_kept BEFORE UPDATE OF id, name, active, retirement OR DELETE ON outbox.relay
    FOR EACH ROW EXECUTE FUNCTION outbox.relay_is_kept();
CREATE TRIGGER relay_is_not_truncated BEFORE TRUNCATE ON outbox.relay
    FOR EACH STATEMENT EXECUTE FUNCTION outbox.relay_is_kept();
ALTER TABLE outbox.relay ENABLE ALWAYS TRIGGER relay_is_kept;
ALTER TABLE outbox.relay ENABLE ALWAYS TRIGGER relay_is_not_truncated;

-- A key whose lane is gone would never be claimed again. Who holds a lane is the processes' affair.
CREATE FUNCTION outbox.lane_is_kept() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' AND EXISTS (
        SELECT 1 FROM outbox.relay WHERE id = OLD.relay_id AND retirement IS NOT NULL)
    THEN
        RETURN OLD;
    END IF;
    RAISE EXCEPTION 'outbox: % of outbox.lane is not allowed: keys would stand still',
        TG_OP USING ERRCODE = 'restrict_violation', HINT = 'Lanes go when their relay is retired.';
END $$;
CREATE TRIGGER lane_is_kept BEFORE UPDATE OF relay_id, lane OR DELETE ON outbox.lane
    FOR EACH ROW EXECUTE FUNCTION outbox.lane_is_kept();
CREATE TRIGGER lane_is_not_truncated BEFORE TRUNCATE ON outbox.lane
    FOR EACH STATEMENT EXECUTE FUNCTION outbox.lane_is_kept();
ALTER TABLE outbox.lane ENABLE ALWAYS TRIGGER lane_is_kept;
ALTER TABLE outbox.lane ENABLE ALWAYS TRIGGER lane_is_not_truncated;

-- Only what waits, and only for a relay that is retired: what was published or died stays known.
CREATE OR REPLACE FUNCTION outbox.delivery_is_kept() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' AND OLD.state = 'PENDING' AND EXISTS (
        SELECT 1 FROM outbox.relay WHERE id = OLD.relay_id AND retirement IS NOT NULL)
    THEN
        RETURN OLD;
    END IF;
    RAISE EXCEPTION 'outbox: % of outbox.delivery is not allowed: its event would be lost to the relay',
        TG_OP USING ERRCODE = 'restrict_violation',
        HINT = 'An event that must not go out is declared dead: outbox-relay declare-dead EVENT --reason ...';
END $$;

-- The move -------------------------------------------------------------------------------------

-- Who is still at work for the relay: whoever has claims, or lanes, whose lease is not over.
CREATE FUNCTION outbox.at_work(relay integer) RETURNS text[]
    LANGUAGE sql STABLE SET enable_seqscan = off AS $$
    SELECT array_agg(DISTINCT w.owner ORDER BY w.owner) FROM (
        SELECT d.claimed_by AS owner FROM outbox.delivery d
         WHERE d.relay_id = relay AND d.state = 'CLAIMED' AND d.lease_until > now()
        UNION ALL
        SELECT h.owner FROM outbox.holder h
         WHERE h.relay_id = relay AND h.expires_at > now()) w $$;

-- From its commit on no event gets a delivery for the relay, but for those of transactions that
-- began before. Under the lock of registrations, so that nobody registers it anew in between.
CREATE FUNCTION outbox.retire_relay(relay text, actor text, reason text) RETURNS integer
    LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    known outbox.relay;
    busy text[];
    kept_as text;
    entry bigint;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('outbox.register_relay', 0));
    SELECT * INTO known FROM outbox.relay WHERE name = retire_relay.relay FOR UPDATE;
    IF known.id IS NULL OR known.retirement IS NOT NULL THEN
        RETURN NULL;
    END IF;
    busy := outbox.at_work(known.id);
    IF busy IS NOT NULL THEN
        RAISE EXCEPTION 'outbox: relay % is at work: %', known.name, array_to_string(busy, ', ')
            USING ERRCODE = 'restrict_violation',
                  HINT = 'Stop its processes, and wait until they have drained or their lease is over.';
    END IF;
    kept_as := format('%s (retired #%s)', known.name, known.id);
    INSERT INTO outbox.audit (actor, action, relay, reason, before, after)
    VALUES (retire_relay.actor, 'retire', known.name, retire_relay.reason,
            to_jsonb(known) || '{"state": "active"}',
            jsonb_build_object('state', 'retired', 'relay_id', known.id, 'name', kept_as))
    RETURNING id INTO entry;
    UPDATE outbox.relay SET active = false, notify = false, name = kept_as, retirement = entry
     WHERE id = known.id;
    DELETE FROM outbox.lane WHERE relay_id = known.id;
    DELETE FROM outbox.holder WHERE relay_id = known.id;
    RETURN known.id;
END $$;

-- What waits for a relay that is retired goes, so many at a time; by the indexes of what waits, so
-- that the millions that were published are not walked over, and onwards from where the last call
-- ended, so that neither are those just deleted. With its owner's rights: nobody else may delete.
CREATE FUNCTION outbox.drop_waiting(
    relay integer, row_limit integer, INOUT lane smallint, INOUT seq bigint, OUT dropped integer
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    SET enable_seqscan = off SET enable_bitmapscan = off AS $$
#variable_conflict use_column
DECLARE
    found record;
    last bigint;
BEGIN
    IF NOT EXISTS (SELECT 1 FROM outbox.relay r
                    WHERE r.id = drop_waiting.relay AND r.retirement IS NOT NULL) THEN
        RAISE EXCEPTION 'outbox: relay % is not retired', relay USING ERRCODE = 'restrict_violation';
    END IF;
    -- Of a process that died: its claims are over, and wait like all others.
    UPDATE outbox.delivery d SET
        state = 'PENDING', hold = 'TIME',
        claimed_at = NULL, claimed_by = NULL, claim_token = NULL, lease_until = NULL
     WHERE d.ctid = ANY (ARRAY(
               SELECT o.ctid FROM outbox.delivery o
                WHERE o.relay_id = relay AND o.state = 'CLAIMED' AND o.lease_until < now()
                ORDER BY o.lease_until LIMIT row_limit FOR UPDATE SKIP LOCKED));
    SELECT array_agg(o.ctid) AS rows, max(o.lane) AS lane, count(*) AS n INTO found FROM (
        SELECT d.ctid, d.lane FROM outbox.delivery d
         WHERE d.relay_id = relay AND d.state = 'PENDING' AND d.hold = 'NONE'
           AND (d.lane, d.seq) > (drop_waiting.lane, drop_waiting.seq)
         ORDER BY d.lane, d.seq LIMIT row_limit FOR UPDATE SKIP LOCKED) o;
    WITH gone AS (
        DELETE FROM outbox.delivery d WHERE d.ctid = ANY (found.rows) AND d.state = 'PENDING'
        RETURNING d.lane, d.seq)
    SELECT count(*), max(gone.seq) FILTER (WHERE gone.lane = found.lane)
      INTO dropped, last FROM gone;
    IF dropped > 0 THEN
        lane := found.lane;
        seq := last;
    END IF;
    IF dropped < row_limit THEN
        WITH gone AS (
            DELETE FROM outbox.delivery d
             WHERE d.state = 'PENDING' AND d.ctid = ANY (ARRAY(
                       (SELECT o.ctid FROM outbox.delivery o
                         WHERE o.relay_id = relay AND o.state = 'PENDING'
                           AND o.hold IN ('TIME', 'SUSPECT')
                         LIMIT row_limit - dropped FOR UPDATE SKIP LOCKED)) || ARRAY(
                       (SELECT o.ctid FROM outbox.delivery o
                         WHERE o.relay_id = relay AND o.hold = 'KEY'
                         LIMIT row_limit - dropped FOR UPDATE SKIP LOCKED)))
            RETURNING 1)
        SELECT dropped + count(*) INTO dropped FROM gone;
    END IF;
END $$;

-- An event that nobody has, and that nobody is to have, waits for nothing.
CREATE OR REPLACE VIEW outbox.events AS
SELECT e.seq, e.event_id, e.event_type, e.payload, e.content_type, e.headers, e.metadata,
       e.partition_key, e.ordering_key, e.idempotency_key, e.tenant_id, e.correlation_id,
       e.causation_id, e.aggregate_type, e.aggregate_id, e.occurred_at, e.created_at,
       e.max_attempts, r.name AS relay,
       CASE WHEN d.state IS NOT NULL THEN d.state
            WHEN EXISTS (SELECT 1 FROM outbox.unmatched u WHERE u.seq = e.seq)
            THEN 'PENDING'::outbox.state END AS state,
       coalesce(d.attempts, 0) AS attempts,
       coalesce(d.attempts - d.attempts_base, 0) AS attempts_in_budget,
       coalesce(d.available_at, e.available_at) AS available_at, d.hold, d.claimed_at,
       d.claimed_by, d.lease_until, d.published_at, d.previous_published_at, d.last_error,
       d.result, d.replay_id, d.crashes
  FROM outbox.event e
  -- by way of the relays, because deliveries are keyed by (relay, seq)
  LEFT JOIN (outbox.relay r JOIN outbox.delivery d ON d.relay_id = r.id) ON d.seq = e.seq;
COMMENT ON VIEW outbox.events IS
    'Every event with its state per relay; relay is NULL while no relay wants the event, and state too where none ever will get it: a record, or what waited for a relay that was retired.';

-- Retiring is an intervention, hence the relays' role's, which can already end whatever waits.
REVOKE ALL ON FUNCTION outbox.relay_is_kept(), outbox.lane_is_kept(), outbox.at_work(integer),
    outbox.retire_relay(text, text, text),
    outbox.drop_waiting(integer, integer, smallint, bigint) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION outbox.at_work(integer), outbox.retire_relay(text, text, text),
    outbox.drop_waiting(integer, integer, smallint, bigint) TO outbox_relay;

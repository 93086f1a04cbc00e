-- Retirement: the only way to end a relay permanently, and to drop what waits for it. Its row stays, under
-- another name, because its deliveries show what it published and what died. A relay that registers under
-- the old name later is another relay, with its own id: so a forgotten process of the old one cannot touch
-- the new one's events.

-- The processes that still work for the relay: all that have claims or lanes whose lease has not expired.
CREATE OR REPLACE FUNCTION outbox.at_work(relay integer) RETURNS text[]
    LANGUAGE sql STABLE SET enable_seqscan = off AS $$
    SELECT array_agg(DISTINCT w.owner ORDER BY w.owner) FROM (
        SELECT d.claimed_by AS owner FROM outbox.delivery d
         WHERE d.relay_id = relay AND d.state = 'CLAIMED' AND d.lease_until > now()
        UNION ALL
        SELECT b.claimed_by FROM outbox.batch b WHERE b.relay_id = relay AND b.lease_until > now()
        UNION ALL
        SELECT h.owner FROM outbox.holder h
         WHERE h.relay_id = relay AND h.expires_at > now()) w $$;

-- After its commit no event gets a delivery for the relay, except those of transactions that began before.
-- It takes the lock of registrations, so that nobody registers the relay again in between.
CREATE OR REPLACE FUNCTION outbox.retire_relay(relay text, actor text, reason text) RETURNS integer
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
        RAISE EXCEPTION 'outbox: relay % is running: %', known.name, array_to_string(busy, ', ')
            USING ERRCODE = 'restrict_violation',
                  HINT = 'Stop its processes, and wait until they have drained or their lease has expired.';
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

-- Drops what waits for a retired relay, up to row_limit at a time; by the indexes of waiting deliveries, so
-- that the millions that were published are not scanned, and from where the last call ended, so that those
-- just deleted are not scanned either. With its owner's rights: nobody else may delete.
-- Planned by index, for each call: ../planner.sql.
CREATE OR REPLACE FUNCTION outbox.drop_waiting(
    relay integer, row_limit integer, INOUT lane smallint, INOUT seq bigint, OUT dropped integer
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS $$
#variable_conflict use_column
DECLARE
    found record;
    last bigint;
BEGIN
    IF NOT EXISTS (SELECT 1 FROM outbox.relay r
                    WHERE r.id = drop_waiting.relay AND r.retirement IS NOT NULL) THEN
        RAISE EXCEPTION 'outbox: relay % is not retired', relay USING ERRCODE = 'restrict_violation';
    END IF;
    -- Expired claims of a process that died: they wait like all others.
    DELETE FROM outbox.batch b WHERE b.token = ANY (ARRAY(
        SELECT o.token FROM outbox.batch o WHERE o.relay_id = relay AND o.lease_until < now()
           FOR UPDATE SKIP LOCKED));
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

-- Batches: deliveries that were claimed together for the first time, and what was published of them. A
-- delivery that needs one attempt only, as almost all do, is never updated: the claim deletes its row, and
-- from then on it is a member of an array.
--
-- Where the state of an event stands follows from what happened to it, and no statement can make two places
-- disagree, whoever sends it: the triggers below do the moving.
--   INSERT INTO batch        a claim: the deliveries of its `seqs` are deleted
--   INSERT INTO published    they are published: the batch of that token is deleted
--   UPDATE of seqs, DELETE   members that are no longer listed become deliveries of their own, CLAIMED or
--                            PUBLISHED as before; of published, other rows may be merged into one
-- What one of these triggers does to another of the tables must not be refused or moved once more: while it
-- moves, outbox.moving is 'on', and the triggers' conditions look at it (../triggers.sql). Only within a
-- trigger, so that no setting alone opens the tables.

CREATE OR REPLACE FUNCTION outbox.without(these bigint[], those bigint[]) RETURNS bigint[]
    LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT array_agg(s ORDER BY s) FROM unnest(these) s WHERE s NOT IN (SELECT unnest(those)) $$;

CREATE OR REPLACE FUNCTION outbox.move(is_moving boolean) RETURNS text
    LANGUAGE sql AS $$ SELECT set_config('outbox.moving', CASE WHEN is_moving THEN 'on' ELSE 'off' END, true) $$;

CREATE OR REPLACE FUNCTION outbox.batch_is_refused(rule text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'outbox: %', rule USING ERRCODE = 'restrict_violation',
        HINT = 'PENDING > CLAIMED > PUBLISHED, PENDING or DEAD; PUBLISHED, DEAD > PENDING by replay.';
END $$;

-- The claim of those that are in line for the first time.
CREATE OR REPLACE FUNCTION outbox.batch_takes_deliveries() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    taken integer;
    last bigint;
BEGIN
    PERFORM outbox.move(true);
    WITH gone AS (
        DELETE FROM outbox.delivery d USING outbox.rows_of(NEW.relay_id, NEW.seqs) v
         WHERE d.relay_id = v.relay_id AND d.seq = v.seq
           AND d.state::text = 'PENDING'  -- as text, so that the index on it is not scanned instead
           AND d.hold::text = 'NONE' AND d.attempts = 0 AND d.age_from IS NULL
        RETURNING d.seq, d.lane)
    SELECT count(*), min(g.seq), max(g.seq), array_agg(DISTINCT g.lane)
      INTO taken, NEW.first_seq, last, NEW.lanes FROM gone g;
    PERFORM outbox.move(false);
    IF taken IS DISTINCT FROM cardinality(NEW.seqs) OR NEW.first_seq IS DISTINCT FROM NEW.seqs[1]
       OR last IS DISTINCT FROM NEW.seqs[taken] THEN
        RAISE EXCEPTION 'outbox: only % of the % deliveries are in line: none was claimed', taken,
            cardinality(NEW.seqs) USING ERRCODE = 'serialization_failure';
    END IF;
    RETURN NEW;
END $$;

-- Members of a batch that become deliveries of their own. By their relay's current ordering.
CREATE OR REPLACE FUNCTION outbox.deliver_claimed(b outbox.batch, members bigint[]) RETURNS void
    LANGUAGE sql AS $$
    INSERT INTO outbox.delivery (relay_id, seq, bytes, key_hash, lane, state, available_at, attempts,
                                 claimed_at, claimed_by, claim_token, lease_until)
    SELECT b.relay_id, e.seq, outbox.bytes_of(e.payload, e.headers),
           outbox.delivery_key(r.ordering = 'Key', e.ordering_key),
           outbox.delivery_lane(r.ordering = 'Key', e.ordering_key, e.seq), 'CLAIMED',
           least(coalesce(e.available_at, e.created_at), b.claimed_at), 1,
           b.claimed_at, b.claimed_by, b.token, b.lease_until
      FROM unnest(members) AS m (seq) JOIN outbox.event e ON e.seq = m.seq
      JOIN outbox.relay r ON r.id = b.relay_id $$;

CREATE OR REPLACE FUNCTION outbox.batch_gives_deliveries() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF TG_OP = 'DELETE' THEN
        PERFORM outbox.move(true);
        PERFORM outbox.deliver_claimed(OLD, OLD.seqs);
        PERFORM outbox.move(false);
        RETURN OLD;
    END IF;
    IF (NEW.token, NEW.relay_id, NEW.claimed_at, NEW.claimed_by, NEW.lanes) IS DISTINCT FROM
       (OLD.token, OLD.relay_id, OLD.claimed_at, OLD.claimed_by, OLD.lanes) THEN
        PERFORM outbox.batch_is_refused('a claim does not change; a renewal changes lease_until');
    ELSIF cardinality(NEW.seqs) = 0 OR outbox.without(NEW.seqs, OLD.seqs) IS NOT NULL
       OR NEW.seqs IS DISTINCT FROM outbox.without(OLD.seqs, outbox.without(OLD.seqs, NEW.seqs)) THEN
        PERFORM outbox.batch_is_refused('a batch only loses members, and is deleted with the last of them');
    END IF;
    PERFORM outbox.move(true);
    PERFORM outbox.deliver_claimed(OLD, outbox.without(OLD.seqs, NEW.seqs));
    PERFORM outbox.move(false);
    NEW.first_seq := NEW.seqs[1];
    RETURN NEW;
END $$;

-- The end of a batch: all that is left in it is published.
CREATE OR REPLACE FUNCTION outbox.published_takes_batch() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM outbox.move(true);
    DELETE FROM outbox.batch b WHERE b.token = NEW.token AND b.relay_id = NEW.relay_id
        RETURNING b.seqs INTO NEW.seqs;
    PERFORM outbox.move(false);
    NEW.size := cardinality(NEW.seqs);
    IF NEW.size IS DISTINCT FROM cardinality(NEW.results) THEN
        PERFORM outbox.batch_is_refused(format(
            'what is published was claimed: %s members under token %s, %s results',
            coalesce(NEW.size, 0), NEW.token, cardinality(NEW.results)));
    END IF;
    NEW.first_seq := NEW.seqs[1];
    NEW.last_seq := NEW.seqs[NEW.size];
    NEW.first_at := now();
    NEW.last_at := now();
    NEW.times := NULL;
    RETURN NEW;
END $$;

CREATE OR REPLACE FUNCTION outbox.deliver_published(p outbox.published, members bigint[]) RETURNS void
    LANGUAGE sql AS $$
    INSERT INTO outbox.delivery (relay_id, seq, bytes, key_hash, lane, state, available_at, attempts,
                                 published_at, result)
    SELECT p.relay_id, e.seq, outbox.bytes_of(e.payload, e.headers),
           outbox.delivery_key(r.ordering = 'Key', e.ordering_key),
           outbox.delivery_lane(r.ordering = 'Key', e.ordering_key, e.seq), 'PUBLISHED',
           least(coalesce(e.available_at, e.created_at), m.at), 1, m.at, m.result
      FROM (SELECT u.seq, u.result, coalesce(u.at, p.first_at) AS at
              FROM unnest(p.seqs, p.results, p.times) AS u (seq, result, at)
             WHERE u.seq IN (SELECT unnest(members))) m
      JOIN outbox.event e ON e.seq = m.seq JOIN outbox.relay r ON r.id = p.relay_id $$;

-- Members that leave become deliveries of their own. Members may also be added: then other rows of the
-- relay that have exactly these are merged into this one, see merge.sql.
CREATE OR REPLACE FUNCTION outbox.published_gives_deliveries() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    given bigint[];
    added bigint[];
    wanted integer := cardinality(NEW.seqs);
BEGIN
    IF TG_OP = 'DELETE' THEN
        PERFORM outbox.move(true);
        PERFORM outbox.deliver_published(OLD, OLD.seqs);
        PERFORM outbox.move(false);
        RETURN OLD;
    END IF;
    given := outbox.without(OLD.seqs, NEW.seqs);
    added := outbox.without(NEW.seqs, OLD.seqs);
    IF (NEW.token, NEW.relay_id, NEW.first_at, NEW.last_at, NEW.results, NEW.times) IS DISTINCT FROM
       (OLD.token, OLD.relay_id, OLD.first_at, OLD.last_at, OLD.results, OLD.times) THEN
        PERFORM outbox.batch_is_refused('what is published does not change; a replay takes members out');
    END IF;
    PERFORM outbox.move(true);
    IF given IS NOT NULL THEN
        PERFORM outbox.deliver_published(OLD, given);
    END IF;
    WITH merged AS (
        DELETE FROM outbox.published p
         WHERE p.relay_id = OLD.relay_id AND p.token <> OLD.token
           AND int8range(p.first_seq, p.last_seq, '[]')
               && int8range(added[1], added[cardinality(added)], '[]')
           AND outbox.without(p.seqs, added) IS NULL
        RETURNING p.seqs, p.results, p.times, p.first_at
    ), member AS (
        SELECT m.seq, m.result, coalesce(m.at, p.first_at) AS at
          FROM (SELECT OLD.seqs, OLD.results, OLD.times, OLD.first_at
                UNION ALL SELECT * FROM merged) AS p (seqs, results, times, first_at),
               unnest(p.seqs, p.results, p.times) AS m (seq, result, at)
         WHERE given IS NULL OR m.seq NOT IN (SELECT unnest(given)))
    SELECT array_agg(m.seq ORDER BY m.seq), array_agg(m.result ORDER BY m.seq),
           array_agg(m.at ORDER BY m.seq), count(*), min(m.seq), max(m.seq), min(m.at), max(m.at)
      INTO NEW.seqs, NEW.results, NEW.times, NEW.size, NEW.first_seq, NEW.last_seq, NEW.first_at, NEW.last_at
      FROM member m;
    PERFORM outbox.move(false);
    IF NEW.first_at = NEW.last_at THEN
        NEW.times := NULL;
    END IF;
    IF NEW.size = 0 OR NEW.size IS DISTINCT FROM wanted THEN
        PERFORM outbox.batch_is_refused('only what is published, and all of a row, is merged into another');
    END IF;
    RETURN NEW;
END $$;

-- Takes members out of the batch of a claim; NULL: all of them. Nothing happens if there is no such batch.
CREATE OR REPLACE FUNCTION outbox.unpack(fence bigint, members bigint[] DEFAULT NULL) RETURNS void
    LANGUAGE plpgsql AS $$
DECLARE
    held bigint[];
    rest bigint[];
BEGIN
    SELECT b.seqs INTO held FROM outbox.batch b WHERE b.token = fence FOR UPDATE;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    IF members IS NOT NULL THEN
        rest := outbox.without(held, members);
    END IF;
    IF rest IS NULL THEN
        DELETE FROM outbox.batch b WHERE b.token = fence;
    ELSIF cardinality(rest) < cardinality(held) THEN
        UPDATE outbox.batch b SET seqs = rest WHERE b.token = fence;
    END IF;
END $$;

-- Does the relay have the event, other than in a row of its own?
CREATE OR REPLACE FUNCTION outbox.is_packed(relay integer, event bigint) RETURNS boolean
    LANGUAGE sql STABLE AS $$
    SELECT EXISTS (SELECT 1 FROM outbox.batch b
                    WHERE b.relay_id = relay AND b.first_seq <= event AND event = ANY (b.seqs))
        OR EXISTS (SELECT 1 FROM outbox.published p
                    WHERE int8range(p.first_seq, p.last_seq, '[]') @> event
                      AND p.relay_id + 0 = relay AND event = ANY (p.seqs)) $$;

-- One delivery, wherever it is: as outbox.deliveries, but found by index.
CREATE OR REPLACE FUNCTION outbox.delivery_of(relay integer, event bigint) RETURNS SETOF outbox.deliveries
    LANGUAGE sql STABLE AS $$
    SELECT d.relay_id, d.seq, d.state, d.hold, d.attempts, d.attempts_base, d.crashes, d.available_at,
           d.claimed_at, d.claimed_by, d.claim_token, d.lease_until, d.published_at,
           d.previous_published_at, d.last_error, d.result, d.replay_id, d.lane
      FROM outbox.delivery d WHERE d.relay_id = relay AND d.seq = event
    UNION ALL
    SELECT b.relay_id, event, 'CLAIMED', 'NONE', 1, 0, 0::smallint, NULL, b.claimed_at, b.claimed_by,
           b.token, b.lease_until, NULL, NULL, NULL, NULL, NULL, NULL
      FROM outbox.batch b WHERE b.relay_id = relay AND b.first_seq <= event AND event = ANY (b.seqs)
    UNION ALL
    SELECT p.relay_id, event, 'PUBLISHED', 'NONE', 1, 0, 0::smallint, NULL, NULL, NULL, NULL, NULL,
           coalesce(p.times[m.n], p.first_at), NULL, NULL, p.results[m.n], NULL, NULL
      FROM outbox.published p, array_position(p.seqs, event) AS m (n)
     WHERE int8range(p.first_seq, p.last_seq, '[]') @> event
       AND p.relay_id + 0 = relay  -- + 0: not also by the index of all that the relay published
       AND m.n IS NOT NULL $$;

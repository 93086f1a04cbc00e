-- Batches: deliveries that were claimed together for the first time, and what was published of them. A
-- delivery that needs one attempt only, as almost all do, is never updated: the claim deletes its row, and
-- from then on it is a member of an array.
--
-- Where the state of an event stands follows from what happened to it, and the triggers below do the moving,
-- whoever sends the statement. What they cannot know is in docs/delivery.md, "Not enforced".
--   INSERT INTO batch        a claim: the deliveries of its `seqs` are deleted
--   INSERT INTO published    they are published: the batch of that token is deleted
--   UPDATE of seqs, DELETE   members that are no longer listed become deliveries of their own, CLAIMED or
--                            PUBLISHED as before; of published, other rows may be merged into one
-- Each of them runs after the row was written (AFTER): what ON CONFLICT or a trigger of somebody else's
-- leaves out is not moved. And each looks for what is there, not at who sent the statement: a delivery may
-- be deleted if it is a member of a batch, and a member that leaves becomes a delivery unless it already
-- has another place.

CREATE OR REPLACE FUNCTION outbox.without(these bigint[], those bigint[]) RETURNS bigint[]
    LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT array_agg(s ORDER BY s) FROM unnest(these) s WHERE s NOT IN (SELECT unnest(those)) $$;

CREATE OR REPLACE FUNCTION outbox.batch_is_refused(rule text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'outbox: %', rule USING ERRCODE = 'restrict_violation',
        HINT = 'PENDING > CLAIMED > PUBLISHED, PENDING or DEAD; PUBLISHED, DEAD > PENDING by replay.';
END $$;

-- The only way for a delivery to begin as CLAIMED or PUBLISHED: see delivery_starts_pending().
CREATE OR REPLACE FUNCTION outbox.move(is_moving boolean) RETURNS text
    LANGUAGE sql AS $$ SELECT set_config('outbox.moving', CASE WHEN is_moving THEN 'on' ELSE 'off' END, true) $$;

-- batch --------------------------------------------------------------------------------------------

CREATE OR REPLACE FUNCTION outbox.batch_begins() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.first_seq := NEW.seqs[1];
    IF EXISTS (SELECT 1 FROM outbox.published p WHERE p.token = NEW.token) THEN
        PERFORM outbox.batch_is_refused(format('a token is drawn for one claim: %s was published', NEW.token));
    END IF;
    RETURN NEW;
END $$;

-- The claim of those that are in line for the first time.
CREATE OR REPLACE FUNCTION outbox.batch_takes_deliveries() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    taken integer;
    first bigint;
    last bigint;
    lanes smallint[];
BEGIN
    WITH gone AS (
        DELETE FROM outbox.delivery d USING outbox.rows_of(NEW.relay_id, NEW.seqs) v
         WHERE d.relay_id = v.relay_id AND d.seq = v.seq
           AND d.state::text = 'PENDING'  -- as text, so that the index on it is not scanned instead
           AND d.hold::text = 'NONE' AND d.attempts = 0 AND d.age_from IS NULL
        RETURNING d.seq, d.lane)
    SELECT count(*), min(g.seq), max(g.seq), array_agg(DISTINCT g.lane)
      INTO taken, first, last, lanes FROM gone g;
    IF taken IS DISTINCT FROM cardinality(NEW.seqs) OR first IS DISTINCT FROM NEW.seqs[1]
       OR last IS DISTINCT FROM NEW.seqs[taken] THEN
        RAISE EXCEPTION 'outbox: only % of the % deliveries are in line: none was claimed', taken,
            cardinality(NEW.seqs) USING ERRCODE = 'serialization_failure';
    ELSIF NOT lanes <@ NEW.lanes THEN
        RAISE EXCEPTION 'outbox: the deliveries are in lanes %, and not only in %: none was claimed', lanes,
            NEW.lanes USING ERRCODE = 'serialization_failure';
    END IF;
    RETURN NULL;
END $$;

-- A delivery is deleted if it is in a batch, or if it waits for a relay that was retired. The whole batch
-- at once is the usual case.
CREATE OR REPLACE FUNCTION outbox.delivery_is_kept() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    one integer;
    other integer;
    members bigint[];
BEGIN
    SELECT min(g.relay_id), max(g.relay_id), array_agg(g.seq ORDER BY g.seq) INTO one, other, members FROM gone g;
    IF members IS NULL OR one = other AND EXISTS (
        SELECT 1 FROM outbox.batch b
         WHERE b.relay_id = one AND b.first_seq = members[1] AND b.seqs = members) THEN
        RETURN NULL;
    END IF;
    IF EXISTS (
        SELECT 1 FROM gone g
         WHERE NOT EXISTS (SELECT 1 FROM outbox.batch b
                            WHERE b.relay_id = g.relay_id AND b.first_seq <= g.seq AND g.seq = ANY (b.seqs))
           AND NOT (g.state = 'PENDING' AND EXISTS (
                        SELECT 1 FROM outbox.relay r
                         WHERE r.id = g.relay_id AND r.retirement IS NOT NULL))) THEN
        RAISE EXCEPTION 'outbox: DELETE of outbox.delivery is not allowed: its event would be lost to the relay'
            USING ERRCODE = 'restrict_violation',
                  HINT = 'To keep an event from being published: outbox-relay declare-dead EVENT --reason ...';
    END IF;
    RETURN NULL;
END $$;

-- Members of a batch that become deliveries of their own. By their relay's current ordering.
CREATE OR REPLACE FUNCTION outbox.deliver_claimed(b outbox.batch, members bigint[]) RETURNS void
    LANGUAGE plpgsql AS $$
DECLARE
    delivered integer;
BEGIN
    PERFORM outbox.move(true);
    INSERT INTO outbox.delivery (relay_id, seq, bytes, key_hash, lane, state, available_at, attempts,
                                 claimed_at, claimed_by, claim_token, lease_until)
    SELECT b.relay_id, e.seq, outbox.bytes_of(e.payload, e.headers),
           outbox.delivery_key(r.ordering = 'Key', e.ordering_key),
           outbox.delivery_lane(r.ordering = 'Key', e.ordering_key, e.seq), 'CLAIMED',
           least(coalesce(e.available_at, e.created_at), b.claimed_at), 1,
           b.claimed_at, b.claimed_by, b.token, b.lease_until
      FROM unnest(members) AS m (seq) JOIN outbox.event e ON e.seq = m.seq
      JOIN outbox.relay r ON r.id = b.relay_id;
    GET DIAGNOSTICS delivered = ROW_COUNT;
    PERFORM outbox.move(false);
    IF delivered <> cardinality(members) THEN
        PERFORM outbox.batch_is_refused(format('only %s of %s deliveries could be made', delivered,
                                               cardinality(members)));
    END IF;
END $$;

CREATE OR REPLACE FUNCTION outbox.batch_changes() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    given bigint[] := outbox.without(OLD.seqs, NEW.seqs);
BEGIN
    IF (NEW.token, NEW.relay_id, NEW.claimed_at, NEW.claimed_by, NEW.lanes) IS DISTINCT FROM
       (OLD.token, OLD.relay_id, OLD.claimed_at, OLD.claimed_by, OLD.lanes) THEN
        PERFORM outbox.batch_is_refused('a claim does not change; a renewal changes lease_until');
    ELSIF cardinality(NEW.seqs) = 0 OR NEW.seqs IS DISTINCT FROM
          (CASE WHEN given IS NULL THEN OLD.seqs ELSE outbox.without(OLD.seqs, given) END) THEN
        PERFORM outbox.batch_is_refused('a batch only loses members, and is deleted with the last of them');
    END IF;
    NEW.first_seq := NEW.seqs[1];
    RETURN NEW;
END $$;

CREATE OR REPLACE FUNCTION outbox.batch_gives_deliveries() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    given bigint[];
BEGIN
    IF TG_OP = 'UPDATE' THEN
        given := outbox.without(OLD.seqs, NEW.seqs);
    ELSIF NOT EXISTS (SELECT 1 FROM outbox.published p
                       WHERE p.token = OLD.token AND p.relay_id + 0 = OLD.relay_id
                         AND p.seqs = OLD.seqs) THEN  -- otherwise they are published
        given := OLD.seqs;
    END IF;
    IF given IS NOT NULL THEN
        PERFORM outbox.deliver_claimed(OLD, given);
    END IF;
    RETURN NULL;
END $$;

-- published ----------------------------------------------------------------------------------------

-- The end of a batch: all that is left in it is published.
CREATE OR REPLACE FUNCTION outbox.published_begins() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    SELECT b.seqs INTO NEW.seqs FROM outbox.batch b
     WHERE b.token = NEW.token AND b.relay_id + 0 = NEW.relay_id FOR UPDATE;
    NEW.size := cardinality(NEW.seqs);
    IF NEW.size IS DISTINCT FROM cardinality(NEW.results) OR array_ndims(NEW.results) <> 1
       OR array_lower(NEW.results, 1) <> 1 THEN
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

CREATE OR REPLACE FUNCTION outbox.published_takes_batch() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    DELETE FROM outbox.batch b WHERE b.token = NEW.token AND b.relay_id + 0 = NEW.relay_id;
    IF NOT FOUND THEN
        PERFORM outbox.batch_is_refused(format('the claim %s did not end', NEW.token));
    END IF;
    RETURN NULL;
END $$;

-- Members that have left a row and have no other place become deliveries of their own. They have one if a
-- replay has made their deliveries, or if the row was merged into another.
CREATE OR REPLACE FUNCTION outbox.deliver_published(p outbox.published, members bigint[]) RETURNS void
    LANGUAGE plpgsql AS $$
DECLARE
    homeless bigint[] := ARRAY(
        SELECT v.seq FROM outbox.rows_of(p.relay_id, members) v
         WHERE NOT EXISTS (SELECT 1 FROM outbox.delivery d WHERE d.relay_id = v.relay_id AND d.seq = v.seq)
         ORDER BY v.seq);
    delivered integer;
BEGIN
    IF homeless <> '{}' THEN
        homeless := coalesce((SELECT coalesce(outbox.without(homeless, o.seqs), '{}') FROM outbox.published o
                               WHERE int8range(o.first_seq, o.last_seq, '[]') @> homeless[1]
                                 AND o.relay_id + 0 = p.relay_id AND homeless[1] = ANY (o.seqs)), homeless);
    END IF;
    IF homeless = '{}' THEN
        RETURN;
    END IF;
    PERFORM outbox.move(true);
    INSERT INTO outbox.delivery (relay_id, seq, bytes, key_hash, lane, state, available_at, attempts,
                                 published_at, result)
    SELECT p.relay_id, e.seq, outbox.bytes_of(e.payload, e.headers),
           outbox.delivery_key(r.ordering = 'Key', e.ordering_key),
           outbox.delivery_lane(r.ordering = 'Key', e.ordering_key, e.seq), 'PUBLISHED',
           least(coalesce(e.available_at, e.created_at), m.at), 1, m.at, m.result
      FROM (SELECT u.seq, u.result, coalesce(u.at, p.first_at) AS at
              FROM unnest(p.seqs, p.results, p.times) AS u (seq, result, at)
             WHERE u.seq NOT IN (SELECT unnest(outbox.without(p.seqs, homeless)))) m
      JOIN outbox.event e ON e.seq = m.seq JOIN outbox.relay r ON r.id = p.relay_id;
    GET DIAGNOSTICS delivered = ROW_COUNT;
    PERFORM outbox.move(false);
    IF delivered <> cardinality(homeless) THEN
        PERFORM outbox.batch_is_refused(format('only %s of %s deliveries could be made', delivered,
                                               cardinality(homeless)));
    END IF;
END $$;

-- What is in `new` and not in `old`; `given` is what is in `old` and not in `new`. If their numbers add up,
-- nothing is, and nothing is compared.
CREATE OR REPLACE FUNCTION outbox.added_to(old bigint[], new bigint[], given bigint[]) RETURNS bigint[]
    LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN cardinality(new) + coalesce(cardinality(given), 0) <> cardinality(old)
                THEN outbox.without(new, old) END $$;

-- Members leave, or other rows of the relay are merged into this one: those that have exactly the members
-- that are added, see merge.sql. What follows from the members is computed here.
CREATE OR REPLACE FUNCTION outbox.published_changes() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    given bigint[] := outbox.without(OLD.seqs, NEW.seqs);
    added bigint[] := outbox.added_to(OLD.seqs, NEW.seqs, given);
    wanted integer := cardinality(NEW.seqs);
BEGIN
    IF (NEW.token, NEW.relay_id) IS DISTINCT FROM (OLD.token, OLD.relay_id)
       OR given IS NULL AND added IS NULL THEN
        PERFORM outbox.batch_is_refused('what is published does not change; a replay takes members out');
    END IF;
    WITH member AS (
        SELECT m.seq, m.result, coalesce(m.at, p.first_at) AS at
          FROM (SELECT OLD.seqs, OLD.results, OLD.times, OLD.first_at
                UNION ALL
                SELECT o.seqs, o.results, o.times, o.first_at FROM outbox.published o
                 WHERE added IS NOT NULL AND o.relay_id + 0 = OLD.relay_id AND o.token <> OLD.token
                   AND int8range(o.first_seq, o.last_seq, '[]')
                       && int8range(added[1], added[cardinality(added)], '[]')
                   -- cheap before dear: few rows begin with one of them
                   AND o.size <= cardinality(added) AND o.first_seq NOT IN (SELECT unnest(OLD.seqs))
                   AND CASE WHEN o.first_seq = ANY (added)
                            THEN outbox.without(o.seqs, added) IS NULL ELSE false END
               ) AS p (seqs, results, times, first_at),
               unnest(p.seqs, p.results, p.times) AS m (seq, result, at)
         WHERE given IS NULL OR m.seq NOT IN (SELECT unnest(given)))
    SELECT array_agg(m.seq ORDER BY m.seq), array_agg(m.result ORDER BY m.seq),
           array_agg(m.at ORDER BY m.seq), count(*), min(m.seq), max(m.seq), min(m.at), max(m.at)
      INTO NEW.seqs, NEW.results, NEW.times, NEW.size, NEW.first_seq, NEW.last_seq, NEW.first_at, NEW.last_at
      FROM member m;
    IF NEW.first_at = NEW.last_at THEN
        NEW.times := NULL;
    END IF;
    IF NEW.size = 0 OR NEW.size IS DISTINCT FROM wanted THEN
        PERFORM outbox.batch_is_refused('only what is published, and all of a row, is merged into another');
    END IF;
    RETURN NEW;
END $$;

CREATE OR REPLACE FUNCTION outbox.published_gives_deliveries() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    given bigint[];
    added bigint[];
    merged integer;
BEGIN
    IF TG_OP = 'DELETE' THEN
        PERFORM outbox.deliver_published(OLD, OLD.seqs);
        RETURN NULL;
    END IF;
    given := outbox.without(OLD.seqs, NEW.seqs);
    added := outbox.added_to(OLD.seqs, NEW.seqs, given);
    IF given IS NOT NULL THEN
        PERFORM outbox.deliver_published(OLD, given);
    END IF;
    IF added IS NOT NULL THEN
        WITH gone AS (
            DELETE FROM outbox.published o
             WHERE o.relay_id + 0 = NEW.relay_id AND o.token <> NEW.token
               AND int8range(o.first_seq, o.last_seq, '[]')
                   && int8range(added[1], added[cardinality(added)], '[]')
               AND o.size <= cardinality(added)
               AND CASE WHEN o.first_seq = ANY (added)
                        THEN outbox.without(o.seqs, added) IS NULL ELSE false END
            RETURNING o.size)
        SELECT sum(g.size) INTO merged FROM gone g;
        IF merged IS DISTINCT FROM cardinality(added) THEN
            PERFORM outbox.batch_is_refused('only whole rows are merged into another');
        END IF;
    END IF;
    RETURN NULL;
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

-- What a replay does to deliveries. Called by outbox.replay_take, chunk by chunk, and for one event by
-- hand.

-- {"Claimed": 1} and {"Claimed": 2, "Dead": 1} are {"Claimed": 3, "Dead": 1}.
CREATE OR REPLACE FUNCTION outbox.add_counts(these jsonb, those jsonb) RETURNS jsonb
    LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN those = '{}' THEN these ELSE (
        SELECT jsonb_object_agg(c.key, c.n) FROM (
            SELECT key, sum(value::bigint) AS n
              FROM (SELECT * FROM jsonb_each_text(these) UNION ALL
                    SELECT * FROM jsonb_each_text(those)) b
             GROUP BY key) c) END $$;

-- Makes DEAD or PUBLISHED deliveries PENDING and due, wherever they are. With hold = TIME and not NONE:
-- their seqs are below the relays' watermark. The relay's ordering may have changed since, so lane and key
-- are set for the current one; the event is only read if they differ. Deliveries in other states are left
-- alone.
CREATE OR REPLACE FUNCTION outbox.requeue(job outbox.replay, ordered boolean, seqs bigint[], due timestamptz)
    RETURNS integer LANGUAGE plpgsql  -- planned in loops, without JIT: ../planner.sql
    AS $$
DECLARE
    own bigint[] := seqs;  -- those that have a row of their own
    back bigint[];
    starts bigint[];
    ends bigint[];
    span bigint;
    moved integer;
BEGIN
    IF 'PUBLISHED' = ANY (job.states) THEN
        INSERT INTO outbox.requeued (relay_id, seqs, replay_id, reset_attempts, due)
        VALUES (job.relay_id, requeue.seqs, job.id, job.reset_attempts, requeue.due)
        RETURNING requeued.seqs INTO back;
        IF back IS NOT NULL THEN
            own := outbox.without(seqs, back);
        END IF;
        IF own IS NULL THEN
            RETURN cardinality(back);
        END IF;
    END IF;
    starts := own;
    ends := own;
    span := own[cardinality(own)] - own[1] + 1;
    -- Adjacent seqs become ranges: a range is read faster than its rows one by one.
    IF span = cardinality(own) THEN
        starts := ARRAY[own[1]];
        ends := ARRAY[own[span]];
    ELSIF span < 2 * cardinality(own) THEN
        SELECT array_agg(r.first ORDER BY r.first), array_agg(r.last ORDER BY r.first)
          INTO starts, ends
          FROM (SELECT min(s.seq) AS first, max(s.seq) AS last
                  FROM (SELECT v.seq, v.seq - v.n AS run
                          FROM unnest(own) WITH ORDINALITY AS v (seq, n)) s
                 GROUP BY s.run) r;
    END IF;
    UPDATE outbox.delivery d SET
        state = 'PENDING', hold = 'TIME', available_at = due, age_from = due, crashes = 0,
        published_at = NULL, result = NULL, replay_id = job.id,
        previous_published_at = coalesce(d.published_at, d.previous_published_at),
        attempts_base = CASE WHEN job.reset_attempts THEN d.attempts ELSE d.attempts_base END,
        last_error = CASE WHEN job.reset_attempts THEN NULL ELSE d.last_error END,
        key_hash = CASE WHEN (d.lane >= 0) = ordered THEN d.key_hash
                        WHEN ordered THEN (SELECT outbox.delivery_key(ordered, e.ordering_key)
                                             FROM outbox.event e WHERE e.seq = d.seq) END,
        lane = CASE WHEN (d.lane >= 0) = ordered THEN d.lane
                    WHEN ordered THEN (SELECT outbox.delivery_lane(ordered, e.ordering_key, e.seq)
                                         FROM outbox.event e WHERE e.seq = d.seq)
                    ELSE -1 END
      FROM unnest(starts, ends) AS v (first, last)  -- ascending: so two replays never deadlock
     WHERE d.relay_id = job.relay_id AND d.seq BETWEEN v.first AND v.last
       AND d.state = ANY (job.states);
    GET DIAGNOSTICS moved = ROW_COUNT;
    RETURN moved + coalesce(cardinality(back), 0);
END $$;

-- One event by hand: a replay without a plan. Returns its seq, or nothing if it is in another state.
CREATE OR REPLACE FUNCTION outbox.replay_one(
    relay integer, seq bigint, replay text, reset_attempts boolean
) RETURNS SETOF bigint LANGUAGE plpgsql AS $$
DECLARE
    ordered boolean := (SELECT r.ordering = 'Key' FROM outbox.relay r WHERE r.id = relay);
    job outbox.replay;
BEGIN
    job.id := replay;
    job.relay_id := relay;
    job.states := '{PUBLISHED, DEAD}';
    job.reset_attempts := reset_attempts;
    IF outbox.requeue(job, ordered, ARRAY[seq], now()) = 1 THEN
        RETURN NEXT seq;
    END IF;
END $$;

-- Those of these events that have no row of their own, because they were claimed or published together.
CREATE OR REPLACE FUNCTION outbox.packed_among(relay integer, seqs bigint[])
    RETURNS TABLE (seq bigint, state outbox.state) LANGUAGE sql STABLE AS $$
    SELECT m.seq, 'CLAIMED'::outbox.state FROM outbox.batch b, unnest(b.seqs) AS m (seq)
     WHERE b.relay_id = relay AND b.first_seq <= packed_among.seqs[cardinality(packed_among.seqs)]
       AND (m.seq IN (SELECT unnest(packed_among.seqs))) IS TRUE  -- IS TRUE: hashed, not joined
    UNION ALL
    SELECT p.seq, 'PUBLISHED' FROM outbox.published_among(relay, packed_among.seqs) p $$;

-- Makes the first delivery of events that the relay never had. route_unmatched locks unmatched events: so
-- they are locked here first too, and the two cannot deadlock. They stay unmatched: another relay that
-- registered since may not have been offered them yet.
CREATE OR REPLACE FUNCTION outbox.backfill(job outbox.replay, ordered boolean, seqs bigint[], due timestamptz)
    RETURNS integer LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS $$  -- planned in loops, without JIT: ../planner.sql
DECLARE
    given bigint[];
BEGIN
    PERFORM outbox.require_read_committed();
    PERFORM u.seq FROM unnest(seqs) AS v (seq) JOIN outbox.unmatched u ON u.seq = v.seq
        FOR UPDATE OF u;
    WITH mine AS (
        INSERT INTO outbox.delivery (relay_id, seq, bytes, key_hash, lane, hold, available_at, age_from,
                                     replay_id)
        SELECT job.relay_id, e.seq, outbox.bytes_of(e.payload, e.headers),
               outbox.delivery_key(ordered, e.ordering_key),
               outbox.delivery_lane(ordered, e.ordering_key, e.seq),
               'TIME', greatest(e.available_at, due),
               CASE WHEN e.available_at = 'infinity' THEN due ELSE greatest(e.available_at, due) END, job.id
          FROM unnest(seqs) AS v (seq) JOIN outbox.event e ON e.seq = v.seq
         WHERE v.seq NOT IN (SELECT p.seq FROM outbox.packed_among(job.relay_id, backfill.seqs) p)
            ON CONFLICT DO NOTHING
        RETURNING seq)
    SELECT array_agg(mine.seq ORDER BY mine.seq) INTO given FROM mine;
    -- One that somebody else gave the relay had a row when this statement began, and no row when it came to
    -- it, if it was claimed in between. Now it would have two places.
    IF EXISTS (SELECT 1 FROM outbox.packed_among(job.relay_id, given)) THEN
        RAISE EXCEPTION 'outbox: events of this chunk are being claimed: try again'
            USING ERRCODE = 'serialization_failure';
    END IF;
    RETURN coalesce(cardinality(given), 0);
END $$;

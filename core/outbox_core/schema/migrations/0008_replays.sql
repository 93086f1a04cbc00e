-- Bulk replays: what was asked for, the plan, the ledger, and the one function that moves deliveries.
--
-- The plan is exact: it lists the events, in chunks, as one snapshot had them. Whoever works on a
-- replay takes chunk after chunk; one chunk is one transaction, which moves its deliveries and
-- writes its row of the ledger, or does nothing. So a lost or repeated task, a twin of it, or a
-- second driver changes nothing: the ledger has each chunk once.
--
-- Chunks are spread over 64 bands, and those of a band are done strictly one after the other. For a
-- relay that orders, a band is a lane: so a key's events come back in the order of their seq,
-- however many take part.

CREATE TABLE outbox.replay (
    id             text             PRIMARY KEY CHECK (id <> ''),
    relay_id       integer          NOT NULL,
    action         text             NOT NULL CHECK (action IN ('Requeue', 'Backfill')),
    states         outbox.state[]   NOT NULL,  -- those that are brought back; none in a Backfill
    reset_attempts boolean          NOT NULL,
    rate           integer          NOT NULL CHECK (rate > 0),
    chunk_rows     integer          NOT NULL CHECK (chunk_rows > 0),
    request        jsonb            NOT NULL,  -- as it was asked for
    reason         text             NOT NULL CHECK (btrim(reason) <> ''),
    requested_by   text,
    created_at     timestamptz      NOT NULL DEFAULT now(),
    -- the plan; NULL until it is made
    by_key         boolean,                    -- a band is a lane
    upper_seq      bigint,                     -- the last of the selected events
    matched        bigint,
    chunks         integer,
    planned_at     timestamptz,
    -- how far it is: what the ledger adds up to, so that nobody has to add it up every second
    replayed       bigint           NOT NULL DEFAULT 0,
    skipped        jsonb            NOT NULL DEFAULT '{}',
    chunks_done    integer          NOT NULL DEFAULT 0,
    stopped_at     timestamptz,
    finished_at    timestamptz,
    -- how fast: a chunk may be taken from next_at on
    pace           double precision NOT NULL CHECK (pace > 0),  -- events per second
    next_at        timestamptz      NOT NULL DEFAULT now(),
    CONSTRAINT plan_is_whole CHECK (
        num_nulls(by_key, matched, chunks, planned_at) IN (0, 4)
        AND (finished_at IS NULL OR chunks_done = chunks))
) WITH (fillfactor = 50);
COMMENT ON TABLE outbox.replay IS 'Bulk replays: what was asked for, how far each is, how fast it may go.';

CREATE TABLE outbox.replay_chunk (
    replay_id text     NOT NULL,
    band      smallint NOT NULL,
    n         integer  NOT NULL,  -- 0, 1, 2 .. within the band
    size      integer  NOT NULL,
    first_seq bigint   NOT NULL,
    seqs      bigint[] NOT NULL,  -- ascending
    PRIMARY KEY (replay_id, band, n)
);
ALTER TABLE outbox.replay_chunk ALTER COLUMN seqs SET STORAGE EXTERNAL;
COMMENT ON TABLE outbox.replay_chunk IS 'The plan of each bulk replay: which events, in which order.';

CREATE TABLE outbox.replay_ledger (
    replay_id text        NOT NULL,
    band      smallint    NOT NULL,
    n         integer     NOT NULL,
    replayed  integer     NOT NULL,
    skipped   jsonb       NOT NULL,  -- how many, by what they were instead when their turn came
    at        timestamptz NOT NULL,
    worker    text        NOT NULL,
    PRIMARY KEY (replay_id, band, n)
);
COMMENT ON TABLE outbox.replay_ledger IS 'What bulk replays did: one row per chunk, in its transaction.';

-- The rules ------------------------------------------------------------------------------------

CREATE FUNCTION outbox.replay_is_kept() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'outbox: % of outbox.% is not allowed: %', TG_OP, TG_TABLE_NAME,
        CASE TG_TABLE_NAME WHEN 'replay_chunk' THEN 'a plan does not change'
                           ELSE 'it tells what was done' END
        USING ERRCODE = 'restrict_violation', HINT = 'Another replay is another OutboxReplay.';
END $$;
CREATE TRIGGER replay_is_kept BEFORE DELETE OR TRUNCATE ON outbox.replay
    FOR EACH STATEMENT EXECUTE FUNCTION outbox.replay_is_kept();
CREATE TRIGGER replay_chunk_is_kept BEFORE UPDATE OR TRUNCATE ON outbox.replay_chunk
    FOR EACH STATEMENT EXECUTE FUNCTION outbox.replay_is_kept();
CREATE TRIGGER replay_ledger_is_kept BEFORE UPDATE OR DELETE OR TRUNCATE ON outbox.replay_ledger
    FOR EACH STATEMENT EXECUTE FUNCTION outbox.replay_is_kept();
CREATE TRIGGER replay_keeps_its_request BEFORE UPDATE OF id, relay_id, action, states,
    reset_attempts, rate, chunk_rows, request, reason, requested_by, created_at
    ON outbox.replay FOR EACH STATEMENT EXECUTE FUNCTION outbox.replay_is_kept();

-- A plan goes when nobody will ever ask for it again: its replay is finished, or its relay retired. The
-- request, the figures and the ledger stay.
CREATE FUNCTION outbox.plan_is_over(replay text) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT p.finished_at IS NOT NULL OR r.retirement IS NOT NULL
      FROM outbox.replay p JOIN outbox.relay r ON r.id = p.relay_id WHERE p.id = plan_is_over.replay $$;

CREATE FUNCTION outbox.replay_needs_its_plan() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF outbox.plan_is_over(OLD.replay_id) THEN
        RETURN OLD;
    END IF;
    RAISE EXCEPTION 'outbox: DELETE of outbox.replay_chunk is not allowed: replay % is not finished',
        OLD.replay_id USING ERRCODE = 'restrict_violation',
        HINT = 'A plan goes by itself when its replay is done.';
END $$;
CREATE TRIGGER replay_needs_its_plan BEFORE DELETE ON outbox.replay_chunk
    FOR EACH ROW EXECUTE FUNCTION outbox.replay_needs_its_plan();

CREATE FUNCTION outbox.replay_goes_on() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'outbox: replay % is % already', OLD.id,
        CASE WHEN OLD.finished_at IS NULL THEN 'planned' ELSE 'finished' END
        USING ERRCODE = 'restrict_violation', HINT = 'Another replay is another OutboxReplay.';
END $$;
CREATE TRIGGER replay_is_planned_once BEFORE UPDATE OF by_key, upper_seq, matched, chunks, planned_at
    ON outbox.replay FOR EACH ROW WHEN (OLD.planned_at IS NOT NULL)
    EXECUTE FUNCTION outbox.replay_goes_on();
CREATE TRIGGER replay_ends_once BEFORE UPDATE OF finished_at, stopped_at
    ON outbox.replay FOR EACH ROW WHEN (OLD.finished_at IS NOT NULL)
    EXECUTE FUNCTION outbox.replay_goes_on();
ALTER TABLE outbox.replay ENABLE ALWAYS TRIGGER replay_is_kept;
ALTER TABLE outbox.replay_chunk ENABLE ALWAYS TRIGGER replay_chunk_is_kept;
ALTER TABLE outbox.replay_chunk ENABLE ALWAYS TRIGGER replay_needs_its_plan;
ALTER TABLE outbox.replay_ledger ENABLE ALWAYS TRIGGER replay_ledger_is_kept;
ALTER TABLE outbox.replay ENABLE ALWAYS TRIGGER replay_keeps_its_request;
ALTER TABLE outbox.replay ENABLE ALWAYS TRIGGER replay_is_planned_once;
ALTER TABLE outbox.replay ENABLE ALWAYS TRIGGER replay_ends_once;

-- What is done to many events at once is about no single one.
ALTER TABLE outbox.audit DROP CONSTRAINT audit_names_what_it_is_about;
ALTER TABLE outbox.audit ADD CONSTRAINT audit_names_what_it_is_about
    CHECK (num_nulls(event_id, seq) = CASE WHEN action IN (
        'retire', 'drop', 'replay-begin', 'replay-stop', 'replay-end') THEN 2 ELSE 0 END);

-- The moves ------------------------------------------------------------------------------------

-- {"Claimed": 1} and {"Claimed": 2, "Dead": 1} are {"Claimed": 3, "Dead": 1}.
CREATE FUNCTION outbox.add_counts(these jsonb, those jsonb) RETURNS jsonb
    LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN those = '{}' THEN these ELSE (
        SELECT jsonb_object_agg(c.key, c.n) FROM (
            SELECT key, sum(value::bigint) AS n
              FROM (SELECT * FROM jsonb_each_text(these) UNION ALL
                    SELECT * FROM jsonb_each_text(those)) b
             GROUP BY key) c) END $$;

-- What is DEAD or PUBLISHED waits again, and is due. hold = TIME and not NONE: its seq lies below
-- the relays' watermark. The relay's ordering may have changed since, so lane and key are those of
-- today; the event is looked at only where they are not. Whoever is on its way is left alone.
CREATE FUNCTION outbox.requeue(job outbox.replay, ordered boolean, seqs bigint[], due timestamptz)
    RETURNS integer LANGUAGE plpgsql
    SET plan_cache_mode = force_generic_plan
    SET enable_seqscan = off SET enable_bitmapscan = off
    SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
    starts bigint[] := seqs;
    ends bigint[] := seqs;
    span bigint := seqs[cardinality(seqs)] - seqs[1] + 1;
    moved integer;
BEGIN
    -- Where they are neighbours: a range is read faster than its events one by one.
    IF span = cardinality(seqs) THEN
        starts := ARRAY[seqs[1]];
        ends := ARRAY[seqs[span]];
    ELSIF span < 2 * cardinality(seqs) THEN
        SELECT array_agg(r.first ORDER BY r.first), array_agg(r.last ORDER BY r.first)
          INTO starts, ends
          FROM (SELECT min(s.seq) AS first, max(s.seq) AS last
                  FROM (SELECT v.seq, v.seq - v.n AS run
                          FROM unnest(seqs) WITH ORDINALITY AS v (seq, n)) s
                 GROUP BY s.run) r;
    END IF;
    UPDATE outbox.delivery d SET
        state = 'PENDING', hold = 'TIME', available_at = due, age_from = due, crashes = 0,
        published_at = NULL, result = NULL, replay_id = job.id,
        previous_published_at = coalesce(d.published_at, d.previous_published_at),
        attempts_base = CASE WHEN job.reset_attempts THEN d.attempts ELSE d.attempts_base END,
        last_error = CASE WHEN job.reset_attempts THEN NULL ELSE d.last_error END,
        key_hash = CASE WHEN (d.lane >= 0) = ordered THEN d.key_hash
                        WHEN ordered THEN (SELECT outbox.key_hash(e.ordering_key)
                                             FROM outbox.event e WHERE e.seq = d.seq) END,
        lane = CASE WHEN (d.lane >= 0) = ordered THEN d.lane
                    WHEN ordered THEN (SELECT outbox.lane_of(outbox.key_hash(e.ordering_key), e.seq)
                                         FROM outbox.event e WHERE e.seq = d.seq)
                    ELSE -1 END
      FROM unnest(starts, ends) AS v (first, last)  -- ascending: so two replays never deadlock
     WHERE d.relay_id = job.relay_id AND d.seq BETWEEN v.first AND v.last
       AND d.state = ANY (job.states);
    GET DIAGNOSTICS moved = ROW_COUNT;
    RETURN moved;
END $$;

-- Events that the relay never had get their first delivery. Whoever routes those that nobody wanted
-- holds them while it does: so they are held here first, and neither waits for the other. They stay
-- where they are: another relay that registered since may not have been offered them yet.
CREATE FUNCTION outbox.backfill(job outbox.replay, ordered boolean, seqs bigint[], due timestamptz)
    RETURNS integer LANGUAGE plpgsql
    SET plan_cache_mode = force_generic_plan
    SET enable_seqscan = off SET enable_bitmapscan = off
    SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
    given integer;
BEGIN
    PERFORM u.seq FROM unnest(seqs) AS v (seq) JOIN outbox.unmatched u ON u.seq = v.seq
        FOR UPDATE OF u;
    INSERT INTO outbox.delivery (relay_id, seq, bytes, key_hash, lane, hold, available_at, age_from,
                                 replay_id)
    SELECT job.relay_id, e.seq, outbox.bytes_of(e.payload, e.headers),
           CASE WHEN ordered THEN outbox.key_hash(e.ordering_key) END,
           CASE WHEN ordered THEN outbox.lane_of(outbox.key_hash(e.ordering_key), e.seq) ELSE -1 END,
           'TIME', greatest(e.available_at, due),
           CASE WHEN e.available_at = 'infinity' THEN due ELSE greatest(e.available_at, due) END, job.id
      FROM unnest(seqs) AS v (seq) JOIN outbox.event e ON e.seq = v.seq
        ON CONFLICT DO NOTHING;
    GET DIAGNOSTICS given = ROW_COUNT;
    RETURN given;
END $$;

-- Take the next chunk and do it. outcome:
--   taken  a chunk was done: so many replayed, so many skipped
--   wait   not now: so many seconds, for the sake of the pace
--   busy   what is next is in other hands
--   done   nothing is left
CREATE FUNCTION outbox.replay_take(
    replay text, worker text,
    OUT outcome text, OUT replayed integer, OUT skipped jsonb, OUT wait double precision,
    OUT band smallint, OUT n integer
) LANGUAGE plpgsql
    SET plan_cache_mode = force_generic_plan
    SET enable_seqscan = off SET enable_bitmapscan = off
    SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off
    SET lock_timeout = '5s' AS $$
DECLARE
    job outbox.replay;
    held outbox.replay;
    chunk outbox.replay_chunk;
    ordered boolean;
    started timestamptz;
BEGIN
    replayed := 0;
    skipped := '{}';
    wait := 0;
    SELECT * INTO job FROM outbox.replay r WHERE r.id = replay;
    IF job.planned_at IS NULL THEN
        RAISE EXCEPTION 'outbox: replay % is not planned', replay USING ERRCODE = 'restrict_violation';
    END IF;
    SELECT r.ordering = 'Key' INTO ordered FROM outbox.relay r
     WHERE r.id = job.relay_id AND r.retirement IS NULL;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'outbox: the relay of replay % was retired', replay
            USING ERRCODE = 'restrict_violation', HINT = 'Nothing publishes for it any more.';
    END IF;
    IF job.chunks_done = job.chunks THEN
        outcome := 'done';
        RETURN;
    END IF;
    -- At a pace that one can keep alone, one takes at a time: else all that wait for next_at would
    -- take a chunk each at that moment, and live traffic would feel it.
    IF job.pace < 20000 AND job.next_at <= clock_timestamp() THEN
        SELECT * INTO held FROM outbox.replay r WHERE r.id = replay FOR NO KEY UPDATE SKIP LOCKED;
        IF FOUND THEN
            job := held;
        ELSE
            job.next_at := clock_timestamp() + make_interval(secs => job.chunk_rows / job.pace);
        END IF;
    END IF;
    wait := extract(epoch FROM job.next_at - clock_timestamp());
    IF wait > 0 THEN
        outcome := 'wait';
        RETURN;
    END IF;
    wait := 0;
    outcome := 'busy';
    SELECT c.* INTO chunk
      FROM generate_series(0, 63) AS b (band), LATERAL (
               SELECT coalesce((SELECT l.n + 1 FROM outbox.replay_ledger l
                                 WHERE l.replay_id = replay AND l.band = b.band
                                 ORDER BY l.n DESC LIMIT 1), 0) AS n OFFSET 0) next,
           outbox.replay_chunk c
     WHERE c.replay_id = replay AND c.band = b.band AND c.n = next.n
     ORDER BY c.first_seq LIMIT 1
       FOR UPDATE OF c SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    -- Again, now that it is ours: somebody may have done it since we looked.
    IF EXISTS (SELECT 1 FROM outbox.replay_ledger l
                WHERE l.replay_id = replay AND l.band = chunk.band AND l.n = chunk.n) THEN
        RETURN;
    END IF;
    -- The relay orders now, and did not when the plan was made: then one after the other, in seq order.
    IF ordered AND NOT job.by_key AND EXISTS (
        SELECT 1 FROM outbox.replay_chunk c
         WHERE c.replay_id = replay AND c.first_seq < chunk.first_seq
           AND NOT EXISTS (SELECT 1 FROM outbox.replay_ledger l
                            WHERE l.replay_id = replay AND l.band = c.band AND l.n = c.n)) THEN
        RETURN;
    END IF;
    -- A chunk that a crash of the server takes back never was, its row of the ledger included: no
    -- need to wait for the disk. What ends a replay is durable, and all before it.
    PERFORM set_config('synchronous_commit', 'off', true);
    started := clock_timestamp();  -- not now(): so that a band's later chunk is due later
    IF job.action = 'Backfill' THEN
        replayed := outbox.backfill(job, ordered, chunk.seqs, started);
        IF replayed < chunk.size THEN
            skipped := jsonb_build_object('Delivered', chunk.size - replayed);
        END IF;
    ELSE
        replayed := outbox.requeue(job, ordered, chunk.seqs, started);
        IF replayed < chunk.size THEN
            SELECT jsonb_object_agg(s.instead, s.n) INTO skipped FROM (
                -- what reached a state that we bring back since we looked was on its way there
                SELECT CASE WHEN d.state = ANY (job.states) THEN 'Claimed'
                            ELSE initcap(d.state::text) END AS instead, count(*) AS n
                  FROM unnest(chunk.seqs) AS v (seq)
                  JOIN outbox.delivery d ON d.relay_id = job.relay_id AND d.seq = v.seq
                 WHERE d.state <> 'PENDING' OR d.replay_id IS DISTINCT FROM replay  -- not ours
                 GROUP BY 1) s;
        END IF;
    END IF;
    INSERT INTO outbox.replay_ledger (replay_id, band, n, replayed, skipped, at, worker)
    VALUES (replay, chunk.band, chunk.n, replay_take.replayed, replay_take.skipped, started, worker);
    -- Last, because others wait for this row. A tenth of a second that was lost may be made up for.
    UPDATE outbox.replay r SET
        replayed = r.replayed + replay_take.replayed, chunks_done = r.chunks_done + 1,
        skipped = outbox.add_counts(r.skipped, replay_take.skipped),
        next_at = greatest(r.next_at, clock_timestamp() - interval '0.1 s')
                  + make_interval(secs => replay_take.replayed / r.pace)
     WHERE r.id = replay;
    outcome := 'taken';
    band := chunk.band;
    n := chunk.n;
END $$;

-- So many chunks of plans that are over go; how many did. With its owner's rights: nobody else may
-- delete. By replay, because of those there are few, and of chunks there may be many.
CREATE FUNCTION outbox.forget_plans(row_limit integer) RETURNS integer
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    gone integer;
BEGIN
    DELETE FROM outbox.replay_chunk d USING (
        SELECT c.replay_id, c.band, c.n FROM outbox.replay p, LATERAL (
            SELECT o.replay_id, o.band, o.n FROM outbox.replay_chunk o
             WHERE o.replay_id = p.id LIMIT row_limit) c
         WHERE outbox.plan_is_over(p.id) LIMIT row_limit) c
     WHERE d.replay_id = c.replay_id AND d.band = c.band AND d.n = c.n;
    GET DIAGNOSTICS gone = ROW_COUNT;
    RETURN gone;
END $$;

REVOKE ALL ON FUNCTION outbox.replay_is_kept(), outbox.replay_goes_on(),
    outbox.replay_needs_its_plan(), outbox.plan_is_over(text), outbox.forget_plans(integer),
    outbox.add_counts(jsonb, jsonb),
    outbox.requeue(outbox.replay, boolean, bigint[], timestamptz),
    outbox.backfill(outbox.replay, boolean, bigint[], timestamptz),
    outbox.replay_take(text, text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION outbox.add_counts(jsonb, jsonb), outbox.plan_is_over(text),
    outbox.forget_plans(integer),
    outbox.requeue(outbox.replay, boolean, bigint[], timestamptz),
    outbox.backfill(outbox.replay, boolean, bigint[], timestamptz),
    outbox.replay_take(text, text) TO outbox_relay;
GRANT SELECT ON outbox.replay, outbox.replay_chunk, outbox.replay_ledger TO outbox_reader, outbox_relay;
GRANT INSERT ON outbox.replay, outbox.replay_chunk, outbox.replay_ledger TO outbox_relay;
GRANT UPDATE ON outbox.replay TO outbox_relay;
GRANT UPDATE ON outbox.replay_chunk TO outbox_relay;  -- to lock its rows: to change them is refused

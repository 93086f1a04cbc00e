-- The step of a bulk replay: one chunk, one transaction. The tasks of a replay call replay_take; the
-- functions before it are its steps, and use its planner settings (../planner.sql).

-- Seconds until a chunk may be taken, to keep the pace; 0 or less: now. At a pace that one task can keep
-- alone, only one takes a chunk at a time: otherwise all tasks that wait for next_at would take one at that
-- moment, and delay live events. So the task that may go locks the replay's row.
CREATE OR REPLACE FUNCTION outbox.replay_wait(job outbox.replay) RETURNS double precision
    LANGUAGE plpgsql AS $$
DECLARE
    held outbox.replay;
BEGIN
    IF job.pace < 20000 AND job.next_at <= clock_timestamp() THEN
        SELECT * INTO held FROM outbox.replay r WHERE r.id = job.id FOR NO KEY UPDATE SKIP LOCKED;
        IF FOUND THEN
            job := held;
        ELSE
            job.next_at := clock_timestamp() + make_interval(secs => job.chunk_rows / job.pace);
        END IF;
    END IF;
    RETURN extract(epoch FROM job.next_at - clock_timestamp());
END $$;

-- The next chunk, locked; a band's chunks are taken in order. NULL: other tasks have the next chunks.
CREATE OR REPLACE FUNCTION outbox.replay_next(job outbox.replay, ordered boolean)
    RETURNS outbox.replay_chunk LANGUAGE plpgsql AS $$
DECLARE
    chunk outbox.replay_chunk;
BEGIN
    SELECT c.* INTO chunk
      FROM generate_series(0, outbox.lanes() - 1) AS b (band), LATERAL (
               SELECT coalesce((SELECT l.n + 1 FROM outbox.replay_ledger l
                                 WHERE l.replay_id = job.id AND l.band = b.band
                                 ORDER BY l.n DESC LIMIT 1), 0) AS n OFFSET 0) next,
           outbox.replay_chunk c
     WHERE c.replay_id = job.id AND c.band = b.band AND c.n = next.n
     ORDER BY c.first_seq LIMIT 1
       FOR UPDATE OF c SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    -- Checked again, now that it is locked: another task may have done it meanwhile.
    IF EXISTS (SELECT 1 FROM outbox.replay_ledger l
                WHERE l.replay_id = job.id AND l.band = chunk.band AND l.n = chunk.n) THEN
        RETURN NULL;
    END IF;
    -- If the relay orders now, and did not when the plan was made: one after the other, in seq order.
    IF ordered AND NOT job.by_key AND EXISTS (
        SELECT 1 FROM outbox.replay_chunk c
         WHERE c.replay_id = job.id AND c.first_seq < chunk.first_seq
           AND NOT EXISTS (SELECT 1 FROM outbox.replay_ledger l
                            WHERE l.replay_id = job.id AND l.band = c.band AND l.n = c.n)) THEN
        RETURN NULL;
    END IF;
    RETURN chunk;
END $$;

-- How many of these events a Requeue skipped, by their actual state.
CREATE OR REPLACE FUNCTION outbox.replay_skipped(job outbox.replay, seqs bigint[]) RETURNS jsonb
    LANGUAGE plpgsql AS $$
BEGIN
    RETURN (SELECT jsonb_object_agg(s.instead, s.n) FROM (
        -- one that has reached a selected state only now was still claimed when we tried
        SELECT CASE WHEN d.state = ANY (job.states) THEN 'Claimed'
                    ELSE initcap(d.state::text) END AS instead, count(*) AS n
          FROM (SELECT d.state FROM outbox.rows_of(job.relay_id, seqs) v
                  JOIN outbox.delivery d ON d.relay_id = v.relay_id AND d.seq = v.seq
                 WHERE d.state <> 'PENDING' OR d.replay_id IS DISTINCT FROM job.id  -- not ours
                 UNION ALL
                SELECT p.state FROM outbox.packed_among(job.relay_id, seqs) p) d
         GROUP BY 1) s);
END $$;

-- Take the next chunk and do it. outcome:
--   taken  a chunk was done: `replayed` and `skipped` events
--   wait   not now: `wait` seconds, to keep the pace
--   busy   other tasks have the next chunks
--   done   nothing is left, or the replay was stopped
CREATE OR REPLACE FUNCTION outbox.replay_take(
    replay text, worker text,
    OUT outcome text, OUT replayed integer, OUT skipped jsonb, OUT wait double precision,
    OUT band smallint, OUT n integer
) LANGUAGE plpgsql  -- planned in loops, without JIT: ../planner.sql
    SET lock_timeout = '5s'
    AS $$
DECLARE
    job outbox.replay;
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
    IF job.chunks_done = job.chunks OR job.stopped_at IS NOT NULL THEN
        outcome := 'done';
        RETURN;
    END IF;
    wait := outbox.replay_wait(job);
    IF wait > 0 THEN
        outcome := 'wait';
        RETURN;
    END IF;
    wait := 0;
    chunk := outbox.replay_next(job, ordered);
    IF chunk.replay_id IS NULL THEN
        outcome := 'busy';
        RETURN;
    END IF;
    -- If a crash of the server undoes a chunk, it undoes its row in the ledger too: no need to wait for
    -- the disk. The end of a replay is durable, and so is everything before it.
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
            skipped := outbox.replay_skipped(job, chunk.seqs);
        END IF;
    END IF;
    INSERT INTO outbox.replay_ledger (replay_id, band, n, replayed, skipped, at, worker)
    VALUES (replay, chunk.band, chunk.n, replay_take.replayed, replay_take.skipped, started, worker);
    -- Last, because others wait for this row. Up to a tenth of a second of delay is made up for.
    UPDATE outbox.replay r SET
        replayed = r.replayed + replay_take.replayed, chunks_done = r.chunks_done + 1,
        skipped = outbox.add_counts(r.skipped, replay_take.skipped),
        next_at = greatest(r.next_at, clock_timestamp() - interval '0.1 s')
                  + make_interval(secs => replay_take.replayed / r.pace)
     WHERE r.id = replay AND r.stopped_at IS NULL;
    IF NOT FOUND THEN  -- what was counted when it was stopped stays true: the chunk is undone
        RAISE EXCEPTION 'outbox: replay % was stopped meanwhile', replay
            USING ERRCODE = 'restrict_violation', HINT = 'When it is resumed, the chunk is done again.';
    END IF;
    outcome := 'taken';
    band := chunk.band;
    n := chunk.n;
END $$;

-- Brings members of outbox.published back. Called by outbox.requeue, as
--     INSERT INTO outbox.requeued (relay_id, seqs, replay_id, reset_attempts, due) VALUES (...)
-- A trigger and not a plain function: a delivery that is PENDING and had an attempt is only ever inserted by
-- a trigger, which writes nothing but what follows from the place that it takes it out of. One write per
-- event: as a PUBLISHED row first, which is then updated, it would be two.
--
-- Two replays never deadlock, and of two that want the same event one gets it. First the rows are inserted,
-- in the order of their seq: what was taken out has a row permanently, so the primary key decides who has
-- it. Only then the members are taken out of their arrays, in the order of the tokens; these locks are held
-- for a short time, because the chunks of all bands of an ordered relay have members in the same arrays.

-- Members of outbox.published become PENDING and due; `seqs`, ascending, are then those that did. With
-- hold = TIME: their seqs are below the relays' watermark.
CREATE OR REPLACE FUNCTION outbox.published_comes_back() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS $$  -- planned in loops, without JIT: ../planner.sql
DECLARE
    back bigint[];
    left_over integer;
    taken integer;
    tries integer := 0;
BEGIN
    PERFORM outbox.move(true);
    WITH mine AS (
        INSERT INTO outbox.delivery (relay_id, seq, bytes, key_hash, lane, hold, available_at, age_from,
                                     attempts, attempts_base, previous_published_at, replay_id)
        SELECT r.id, e.seq, outbox.bytes_of(e.payload, e.headers),
               outbox.delivery_key(r.ordering = 'Key', e.ordering_key),
               outbox.delivery_lane(r.ordering = 'Key', e.ordering_key, e.seq),
               'TIME', NEW.due, NEW.due, 1, NEW.reset_attempts::integer, m.at, NEW.replay_id
          FROM outbox.relay r, outbox.published_among(NEW.relay_id, NEW.seqs) m
          JOIN outbox.event e ON e.seq = m.seq
         WHERE r.id = NEW.relay_id AND r.retirement IS NULL
         ORDER BY m.seq
            ON CONFLICT DO NOTHING
        RETURNING seq)
    SELECT array_agg(mine.seq ORDER BY mine.seq), count(*) INTO back, left_over FROM mine;
    PERFORM outbox.move(false);
    WHILE left_over > 0 LOOP  -- once, unless somebody merges the arrays at this moment
        taken := outbox.take_out(NEW.relay_id, back);
        tries := CASE WHEN taken = 0 THEN tries + 1 ELSE 0 END;
        IF tries > 3 THEN
            RAISE EXCEPTION 'outbox: % deliveries would be in two places', left_over
                USING ERRCODE = 'serialization_failure';
        END IF;
        left_over := left_over - taken;
    END LOOP;
    NEW.seqs := back;
    RETURN NEW;
END $$;

-- Those of these events that were published at their first attempt, and when.
CREATE OR REPLACE FUNCTION outbox.published_among(relay integer, seqs bigint[])
    RETURNS TABLE (seq bigint, at timestamptz) LANGUAGE sql STABLE AS $$
    SELECT m.seq, coalesce(m.at, p.first_at)
      FROM outbox.published p, unnest(p.seqs, p.times) AS m (seq, at)
     WHERE p.relay_id + 0 = relay  -- + 0: not by the index on it, which would read all of the relay
       AND int8range(p.first_seq, p.last_seq, '[]')
           && int8range(published_among.seqs[1], published_among.seqs[cardinality(published_among.seqs)], '[]')
       AND (m.seq IN (SELECT unnest(published_among.seqs))) IS TRUE $$;  -- IS TRUE: hashed, not joined

-- Takes these members out of the arrays, which become shorter or are deleted; returns how many it found.
CREATE OR REPLACE FUNCTION outbox.take_out(relay integer, members bigint[]) RETURNS integer
    LANGUAGE plpgsql AS $$
DECLARE
    tokens bigint[];
    taken integer;
BEGIN
    SELECT array_agg(t.token) INTO tokens FROM (
        SELECT p.token FROM outbox.published p
         WHERE p.relay_id + 0 = relay
           AND int8range(p.first_seq, p.last_seq, '[]')
               && int8range(members[1], members[cardinality(members)], '[]')
           AND EXISTS (SELECT 1 FROM unnest(p.seqs) s WHERE (s IN (SELECT unnest(members))) IS TRUE)
         ORDER BY p.token FOR UPDATE) t;
    -- A statement of its own: it sees what others did before they let us have the locks. The trigger of
    -- outbox.published computes the other columns.
    WITH rest AS MATERIALIZED (
        SELECT p.token, p.size, outbox.without(p.seqs, members) AS seqs
          FROM outbox.published p WHERE p.token = ANY (tokens)
    ), gone AS (
        DELETE FROM outbox.published p USING rest r WHERE p.token = r.token AND r.seqs IS NULL
        RETURNING r.size AS taken
    ), cut AS (
        UPDATE outbox.published p SET seqs = r.seqs
          FROM rest r
         WHERE p.token = r.token AND r.seqs IS NOT NULL AND cardinality(r.seqs) < r.size
        RETURNING r.size - cardinality(r.seqs) AS taken)
    SELECT coalesce(sum(t.taken), 0) INTO taken
      FROM (SELECT g.taken FROM gone g UNION ALL SELECT c.taken FROM cut c) t;
    RETURN taken;
END $$;

-- Release: events that wait behind an earlier one of their key become due. Called whenever that one may
-- have ended: by finish.sql, expire.sql, interventions by hand, and regularly by a relay.

-- Releases those of these keys whose first waiting event no longer waits for anything, up to row_limit
-- events of each; the next ones follow when these are finished. Only a hint: a claim checks again what
-- waits for what. A suspect becomes a suspect again.
CREATE OR REPLACE FUNCTION outbox.release_keys(relay integer, keys bigint[], row_limit integer DEFAULT 1000)
    RETURNS integer LANGUAGE plpgsql  -- planned in loops: ../planner.sql
    AS $$
DECLARE
    freed bigint[];
    moved integer;
BEGIN
    freed := ARRAY(
        SELECT n.seq FROM unnest(keys) AS k (key_hash), LATERAL (
            SELECT h.hold FROM outbox.delivery h
             WHERE h.relay_id = relay AND h.key_hash = k.key_hash AND h.hold <> 'NONE'
             ORDER BY h.seq LIMIT 1) first, LATERAL (
            SELECT w.seq FROM outbox.delivery w
             WHERE w.relay_id = relay AND w.key_hash = k.key_hash AND w.hold = 'KEY'
               AND first.hold = 'KEY'
             ORDER BY w.seq LIMIT row_limit) n);
    IF freed = '{}' THEN
        RETURN 0;
    END IF;
    UPDATE outbox.delivery d SET
        hold = CASE WHEN d.crashes > 0 THEN 'SUSPECT' ELSE 'TIME' END::outbox.hold,
        available_at = greatest(d.available_at, now())
      FROM outbox.rows_of(relay, freed) f
     WHERE d.relay_id = f.relay_id AND d.seq = f.seq
       AND d.hold::text = 'KEY';  -- as text, so that the index on 'KEY' is not scanned instead
    GET DIAGNOSTICS moved = ROW_COUNT;
    RETURN moved;
END $$;

-- These deliveries may no longer block their keys.
CREATE OR REPLACE FUNCTION outbox.release_behind(relay integer, seqs bigint[]) RETURNS void
    LANGUAGE plpgsql  -- planned in loops: ../planner.sql
    AS $$
BEGIN
    PERFORM outbox.release_keys(relay, ARRAY(
        SELECT DISTINCT outbox.key_hash(e.ordering_key)
          FROM outbox.rows_of(relay, seqs) v JOIN outbox.event e ON e.seq = v.seq
         WHERE e.ordering_key IS NOT NULL));
END $$;

-- Finds keys that were missed when they became free: checks the next key_limit keys that have waiting
-- events, only those in `lanes`. Returns the last of them, to continue from; NULL after the last one.
CREATE OR REPLACE FUNCTION outbox.sweep_keys(relay integer, lanes smallint[], after bigint, key_limit integer)
    RETURNS bigint LANGUAGE plpgsql  -- planned in loops: ../planner.sql
    AS $$
DECLARE
    keys bigint[];
BEGIN
    WITH RECURSIVE behind AS (  -- one probe each
        (SELECT d.key_hash, 1 AS n FROM outbox.delivery d
          WHERE d.relay_id = relay AND d.hold = 'KEY' AND d.key_hash > sweep_keys.after
          ORDER BY d.key_hash LIMIT 1)
        UNION ALL
        SELECT next.key_hash, b.n + 1 FROM behind b, LATERAL (
            SELECT d.key_hash FROM outbox.delivery d
             WHERE d.relay_id = relay AND d.hold = 'KEY' AND d.key_hash > b.key_hash
             ORDER BY d.key_hash LIMIT 1) next
         WHERE b.n < key_limit
    )
    SELECT array_agg(b.key_hash ORDER BY b.n) INTO keys FROM behind b;
    PERFORM outbox.release_keys(relay, ARRAY(
        SELECT k FROM unnest(keys) k WHERE outbox.lane_of(k, 0) = ANY (lanes)));
    RETURN CASE WHEN cardinality(keys) = key_limit THEN keys[key_limit] END;
END $$;

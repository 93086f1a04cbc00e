-- What a relay that orders claims next, in steps. Only outbox.turn calls choose_ordered, and only that
-- calls the steps: so they use the planner settings of outbox.turn (../planner.sql).

-- Is anything in line in these lanes?
CREATE OR REPLACE FUNCTION outbox.has_line(relay integer, lanes smallint[], floor bigint)
    RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    RETURN EXISTS (SELECT 1 FROM unnest(lanes) AS own (lane), LATERAL (
                       SELECT 1 FROM outbox.delivery d
                        WHERE d.relay_id = relay AND d.lane = own.lane
                          AND d.state = 'PENDING' AND d.hold = 'NONE' AND d.seq > floor
                        LIMIT 1) l);
END $$;

-- Is anything due in these lanes that waited for its time (hold TIME), or that is a suspect (SUSPECT)?
CREATE OR REPLACE FUNCTION outbox.has_due(relay integer, lanes smallint[], hold outbox.hold)
    RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    RETURN EXISTS (SELECT 1 FROM outbox.delivery d
                    WHERE d.relay_id = relay AND d.state = 'PENDING' AND d.hold = has_due.hold
                      AND d.hold IN ('TIME', 'SUSPECT')  -- the condition of the index
                      AND d.available_at <= now() AND d.lane = ANY (lanes));
END $$;

-- Choose, and find out which deliveries wait behind an earlier event of their key. One statement, hence one
-- snapshot. Its steps:
--   ready      deliveries that are due, in the order of their time; with `suspects` only suspects
--   front      the first delivery in line in each of their lanes
--   early      those of `ready` that belong behind events that are still in line
--   due        those of `ready` that may be claimed now, within their share of the bytes
--   line       the rest of the claim, from the lines of all lanes
--   candidate  both, up to the bytes of a claim
--   barrier    per key, the first waiting delivery that is not among them
--   judged     each candidate: does it wait for a barrier?
--   ranked     the candidates that wait, and those that do not, each in order
-- Of those that are chosen, `fresh` were never claimed before, nor given another time.
CREATE OR REPLACE FUNCTION outbox.judge_in_order(
    relay integer, lanes smallint[], row_limit integer, lane_limit integer, floor bigint,
    suspects boolean, in_line boolean,
    OUT fresh bigint[], OUT fresh_lanes smallint[], OUT others bigint[], OUT behind bigint[],
    OUT early bigint[], OUT line_from bigint
) LANGUAGE plpgsql AS $$
BEGIN
    WITH ready AS MATERIALIZED (
        SELECT d.seq, d.lane, d.key_hash, d.crashes, d.bytes
          FROM outbox.delivery d
         WHERE d.relay_id = relay AND d.state = 'PENDING'
           AND d.hold = CASE WHEN suspects THEN 'SUSPECT' ELSE 'TIME' END::outbox.hold
           AND d.hold IN ('TIME', 'SUSPECT')
           AND d.available_at <= now() AND d.lane = ANY (lanes)
         ORDER BY d.available_at, d.seq
         LIMIT CASE WHEN in_line AND NOT suspects THEN outbox.due_share(row_limit) ELSE row_limit END
    ), front AS MATERIALIZED (
        SELECT l.lane, f.seq FROM (SELECT DISTINCT r.lane FROM ready r WHERE NOT suspects) l,
            LATERAL (SELECT d.seq FROM outbox.delivery d
                      WHERE d.relay_id = relay AND d.lane = l.lane
                        AND d.state = 'PENDING' AND d.hold = 'NONE' AND d.seq > floor
                      ORDER BY d.seq LIMIT 1) f
    ), early AS MATERIALIZED (
        -- The time that its producer set has come, but earlier events of its key may still be in line:
        -- it joins the line too. (Not below the watermark: that is below the first in line.)
        SELECT r.seq FROM ready r, front f
         WHERE r.key_hash IS NOT NULL AND f.lane = r.lane AND f.seq < r.seq
    ), due AS MATERIALIZED (
        SELECT b.seq, b.key_hash, b.crashes, b.bytes, b.lane, false AS fresh FROM (
            SELECT r.*, sum(r.bytes) OVER (ORDER BY r.seq ROWS UNBOUNDED PRECEDING) - r.bytes AS before
              FROM ready r WHERE r.seq NOT IN (SELECT e.seq FROM early e)) b
         WHERE b.before = 0 OR suspects OR NOT in_line
            OR b.before + b.bytes <= outbox.due_share(outbox.bytes_per_claim())
    ), line AS (
        SELECT l.* FROM unnest(lanes) AS own (lane), LATERAL (
            SELECT d.seq, d.key_hash, d.crashes, d.bytes, d.lane,
                   d.attempts = 0 AND d.age_from IS NULL AS fresh
              FROM outbox.delivery d
             WHERE d.relay_id = relay AND d.lane = own.lane
               AND d.state = 'PENDING' AND d.hold = 'NONE' AND d.seq > floor
             ORDER BY d.seq LIMIT lane_limit) l
         WHERE NOT suspects
         ORDER BY l.seq LIMIT row_limit - (SELECT count(*) FROM due)
    ), candidate AS MATERIALIZED (  -- the end is cut off, in seq order: no key has a gap
        SELECT * FROM (
            SELECT c.*, sum(c.bytes) OVER (ORDER BY c.seq ROWS UNBOUNDED PRECEDING) - c.bytes AS before
              FROM (SELECT * FROM due UNION ALL SELECT * FROM line) c) b
         WHERE b.before < outbox.bytes_per_claim()
    ), barrier AS MATERIALIZED (
        SELECT k.key_hash, w.seq
          FROM (SELECT DISTINCT c.key_hash FROM candidate c
                 WHERE c.key_hash IS NOT NULL
                   -- checked once, and in this snapshot: an event that becomes PENDING meanwhile is
                   -- either seen here, or its later ones were in flight before
                   AND EXISTS (SELECT 1 FROM outbox.delivery o WHERE o.relay_id = relay
                                  AND o.hold <> 'NONE' AND o.key_hash IS NOT NULL)) k,
               LATERAL (SELECT h.seq FROM outbox.delivery h
                         WHERE h.relay_id = relay AND h.key_hash = k.key_hash AND h.hold <> 'NONE'
                           AND h.seq NOT IN (SELECT due.seq FROM due)
                         ORDER BY h.seq LIMIT 1) w
    ), judged AS (
        SELECT c.crashes, c.seq, c.lane, c.fresh,
               EXISTS (SELECT 1 FROM barrier b
                        WHERE b.key_hash = c.key_hash AND b.seq < c.seq) AS waits
          FROM candidate c
    ), ranked AS (  -- among those that do not wait: its number, and how many loners there are up to it
        SELECT j.*, row_number() OVER (PARTITION BY j.waits ORDER BY j.seq) AS n,
               count(*) FILTER (WHERE j.crashes >= 2) OVER (PARTITION BY j.waits ORDER BY j.seq)
                   AS loners
          FROM judged j
    )
    -- Suspects as in choose(): small groups, then one at a time; what is behind a loner may have its key.
    -- Those that wait leave the line: here they would take the others' places permanently.
    SELECT array_agg(r.seq ORDER BY r.seq) FILTER (WHERE NOT r.waits AND r.fresh),
           array_agg(DISTINCT r.lane) FILTER (WHERE NOT r.waits AND r.fresh),
           array_agg(r.seq ORDER BY r.seq) FILTER (WHERE NOT r.waits AND NOT r.fresh AND (
               NOT suspects OR CASE WHEN r.n = 1 THEN true ELSE r.loners = 0 AND r.n <= 50 END)),
           array_agg(r.seq) FILTER (WHERE r.waits),
           (SELECT array_agg(e.seq) FROM early e),
           (SELECT min(l.seq) FROM line l)
      INTO fresh, fresh_lanes, others, behind, early, line_from
      FROM ranked r
     -- checked again, in the same snapshot in which the candidates were found
     WHERE NOT EXISTS (SELECT 1 FROM outbox.unmatched u
                        WHERE u.version < (SELECT r.version FROM outbox.relay r WHERE r.id = relay));
END $$;

-- Choose in order: only from the caller's own lanes, in seq order, and nothing whose key has an earlier
-- event that waits. `holder` proves that the lanes are still ours: a process that takes them over locks
-- that row, so either this claim commits before, or it does not find the row. FOR KEY SHARE, so that the
-- row's lease can be renewed meanwhile.
CREATE OR REPLACE FUNCTION outbox.choose_ordered(
    relay integer, holder bigint, lanes smallint[], row_limit integer, lane_limit integer,
    floor bigint, suspects boolean,
    OUT fresh bigint[], OUT fresh_lanes smallint[], OUT others bigint[], OUT line_from bigint
) LANGUAGE plpgsql AS $$  -- planned as outbox.turn: in loops
DECLARE
    in_line boolean := outbox.has_line(relay, lanes, floor);
    behind bigint[];
    early bigint[];
BEGIN
    suspects := suspects AND outbox.has_due(relay, lanes, 'SUSPECT');
    IF NOT suspects AND NOT in_line AND NOT outbox.has_due(relay, lanes, 'TIME') THEN
        RETURN;  -- a claim that finds nothing writes nothing
    END IF;
    -- An event that was inserted before we registered must come before the later ones of its key. Events
    -- that wait only for relays that registered since do not matter: we were already offered them.
    IF EXISTS (SELECT 1 FROM outbox.unmatched u
                WHERE u.version < (SELECT r.version FROM outbox.relay r WHERE r.id = relay)) THEN
        PERFORM outbox.route_unmatched(greatest(row_limit, 5000));
        RETURN;
    END IF;
    -- Before anything is chosen: an intervention by hand locks this row too, so that what we choose below
    -- is in the order that it left.
    PERFORM 1 FROM outbox.holder h WHERE h.token = holder AND h.expires_at > now() FOR KEY SHARE;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    SELECT j.fresh, j.fresh_lanes, j.others, j.behind, j.early, j.line_from
      INTO fresh, fresh_lanes, others, behind, early, line_from
      FROM outbox.judge_in_order(
               relay, lanes, row_limit, lane_limit, floor, suspects, in_line) j;
    IF behind IS NOT NULL THEN  -- out of the line, so that they are not scanned again and again
        UPDATE outbox.delivery d SET hold = 'KEY' FROM outbox.rows_of(relay, behind) b
         WHERE d.relay_id = b.relay_id AND d.seq = b.seq AND d.state::text = 'PENDING'
           AND d.key_hash IS NOT NULL;  -- otherwise it was just taken out of its lane: see relane
    END IF;
    IF early IS NOT NULL THEN
        UPDATE outbox.delivery d SET hold = 'NONE' FROM outbox.rows_of(relay, early) e
         WHERE d.relay_id = e.relay_id AND d.seq = e.seq
           AND d.state::text = 'PENDING';  -- as text: see release_keys
    END IF;
END $$;

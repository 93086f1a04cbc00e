-- What a relay that does not order claims next. Called by outbox.turn.

-- Choose without order; with `suspects`, first those that were in flight when a relay died. Rows that
-- another process is claiming are skipped, not waited for. Retries and replays come back with hold = TIME:
-- so every row that is in line has a seq above `floor`, the caller's watermark, and a long transaction
-- elsewhere does not slow down the scan. The chosen rows are locked until they are claimed. `fresh` are
-- those in line, which were never claimed before; `others` had a time to wait for.
CREATE OR REPLACE FUNCTION outbox.choose(
    relay integer, row_limit integer, floor bigint, suspects boolean,
    OUT fresh bigint[], OUT others bigint[], OUT line_from bigint
) LANGUAGE plpgsql  -- planned as outbox.turn, and never sorted: ../planner.sql
    AS $$
DECLARE
    share CONSTANT integer := outbox.due_share(outbox.bytes_per_claim());
    due bigint[];
    up_to bigint[];  -- the bytes of each and of all before it
    due_bytes bigint := 0;
BEGIN
    IF suspects AND EXISTS (SELECT 1 FROM outbox.delivery d
                             WHERE d.relay_id = relay AND d.state = 'PENDING' AND d.lane = -1
                               AND d.hold = 'SUSPECT' AND d.available_at <= now()) THEN
        -- In small groups; those that were in such a group when its relay died come one at a time.
        SELECT array_agg(s.seq) INTO due FROM (
            SELECT c.seq, c.crashes, row_number() OVER () AS n,
                   first_value(c.crashes) OVER () AS first,
                   sum(c.bytes) OVER (ROWS UNBOUNDED PRECEDING) - c.bytes AS before
              FROM (SELECT d.seq, d.crashes, d.bytes FROM outbox.delivery d
                     WHERE d.relay_id = relay AND d.state = 'PENDING' AND d.hold = 'SUSPECT'
                       AND d.available_at <= now() AND d.lane = -1
                     ORDER BY d.available_at, d.seq LIMIT least(row_limit, 50)
                       FOR UPDATE SKIP LOCKED) c) s
         WHERE CASE WHEN s.first >= 2 THEN s.n = 1 ELSE s.crashes < 2 END
           AND s.before < outbox.bytes_per_claim();
    ELSE
        SELECT array_agg(b.seq), array_agg(b.before + b.bytes), coalesce(sum(b.bytes), 0)
          INTO due, up_to, due_bytes FROM (
            SELECT c.seq, c.bytes, sum(c.bytes) OVER (ROWS UNBOUNDED PRECEDING) - c.bytes AS before
              FROM (SELECT d.seq, d.bytes FROM outbox.delivery d
                     WHERE d.relay_id = relay AND d.state = 'PENDING' AND d.hold = 'TIME'
                       AND d.available_at <= now() AND d.lane = -1
                     ORDER BY d.available_at, d.seq LIMIT row_limit FOR UPDATE SKIP LOCKED) c) b
         WHERE b.before < outbox.bytes_per_claim();
        IF due_bytes > share AND EXISTS (SELECT 1 FROM outbox.delivery d
                                          WHERE d.relay_id = relay AND d.lane = -1
                                            AND d.state = 'PENDING' AND d.hold = 'NONE'
                                            AND d.seq > floor) THEN
            due := due[1 : greatest(1, (SELECT count(*) FROM unnest(up_to) u WHERE u <= share))];
            due_bytes := up_to[cardinality(due)];
        END IF;
        SELECT array_agg(b.seq), min(b.seq) INTO fresh, line_from FROM (
            SELECT c.seq, sum(c.bytes) OVER (ROWS UNBOUNDED PRECEDING) - c.bytes AS before
              FROM (SELECT d.seq, d.bytes FROM outbox.delivery d
                     WHERE d.relay_id = relay AND d.lane = -1
                       AND d.state = 'PENDING' AND d.hold = 'NONE' AND d.seq > floor
                     ORDER BY d.seq
                     LIMIT greatest(row_limit - coalesce(cardinality(due), 0),
                                    row_limit - outbox.due_share(row_limit))
                       FOR UPDATE SKIP LOCKED) c) b
         WHERE b.before + due_bytes < outbox.bytes_per_claim();
        due := due[1 : row_limit - coalesce(cardinality(fresh), 0)];
    END IF;
    others := nullif(due, '{}');
END $$;

-- Claims and their end: the only statements that move deliveries in bulk. They are functions for
-- two reasons. Their plans are cached in the backend also behind a pooler that forbids prepared
-- statements; and they carry their planner settings with them, because a plan made while the table
-- was empty must not scan it all when a million rows wait.

CREATE TYPE outbox.claimed AS (
    seq bigint, token bigint, now timestamptz, attempts integer, attempts_base integer,
    crashes smallint, lane smallint, event_id text, event_type text, payload bytea,
    content_type text, headers text, traceparent text, partition_key text, ordering_key text,
    tenant_id text, correlation_id text, causation_id text, idempotency_key text,
    aggregate_type text, aggregate_id text, occurred_at timestamptz, created_at timestamptz,
    max_attempts integer,
    line_from bigint,  -- the smallest seq that was in line; for the caller's watermark
    age_from timestamptz
);

-- A claim takes at most so many bytes of payload and headers, or one event: a relay's memory is
-- bounded, whatever waits.
CREATE FUNCTION outbox.bytes_per_claim() RETURNS integer
    LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$ SELECT 8 * 1024 * 1024 $$;

-- Of a claim's places and bytes, the part that what comes back (retries, replays) may take: the rest
-- is for the line. Otherwise one destination that takes nothing would fill every claim with its
-- retries, and nothing would be left for the others. A claim of one event has no part to reserve.
CREATE FUNCTION outbox.due_share(whole integer) RETURNS integer
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$ SELECT CASE WHEN whole > 1 THEN whole - greatest(1, whole / 4) ELSE whole END $$;

-- Choose without order; with `suspects`, those first that were in flight when a relay died. Rows that
-- another relay is claiming are skipped, not waited for. What returns to the line does so with
-- hold = TIME: so every row that is in line has a seq above `floor`, the caller's watermark, and a
-- long transaction elsewhere does not slow the scan down. What is chosen is locked until the claim has
-- it.
CREATE FUNCTION outbox.choose(
    relay integer, row_limit integer, floor bigint, suspects boolean,
    OUT chosen bigint[], OUT line_from bigint
) LANGUAGE plpgsql
    SET plan_cache_mode = force_generic_plan
    SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off AS $$
DECLARE
    share CONSTANT integer := outbox.due_share(outbox.bytes_per_claim());
    due bigint[];
    up_to bigint[];  -- the bytes of each and of all before it
    due_bytes bigint := 0;
    line bigint[];
BEGIN
    IF suspects AND EXISTS (SELECT 1 FROM outbox.delivery d
                             WHERE d.relay_id = relay AND d.state = 'PENDING' AND d.lane = -1
                               AND d.hold = 'SUSPECT' AND d.available_at <= now()) THEN
        -- In small groups; those that were in one when it died come one at a time.
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
        SELECT array_agg(b.seq), min(b.seq) INTO line, line_from FROM (
            SELECT c.seq, sum(c.bytes) OVER (ROWS UNBOUNDED PRECEDING) - c.bytes AS before
              FROM (SELECT d.seq, d.bytes FROM outbox.delivery d
                     WHERE d.relay_id = relay AND d.lane = -1
                       AND d.state = 'PENDING' AND d.hold = 'NONE' AND d.seq > floor
                     ORDER BY d.seq
                     LIMIT greatest(row_limit - coalesce(cardinality(due), 0),
                                    row_limit - outbox.due_share(row_limit))
                       FOR UPDATE SKIP LOCKED) c) b
         WHERE b.before + due_bytes < outbox.bytes_per_claim();
        due := due[1 : row_limit - coalesce(cardinality(line), 0)];
    END IF;
    chosen := due || line;
END $$;

-- Of these keys, those whose first waiting event waits for nobody any more go on, so many events of
-- each; the next ones follow when these are finished. Called whenever something may have freed them.
-- Only a hint: a claim asks again who waits for whom. A suspect is one again.
CREATE FUNCTION outbox.release_keys(relay integer, keys bigint[], row_limit integer DEFAULT 1000)
    RETURNS integer LANGUAGE plpgsql
    SET plan_cache_mode = force_generic_plan
    SET enable_seqscan = off SET enable_bitmapscan = off SET enable_nestloop = on
    SET enable_hashjoin = off SET enable_mergejoin = off AS $$
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
     WHERE d.relay_id = relay AND d.seq = ANY (freed)
       AND d.hold::text = 'KEY';  -- as text, so that the index on 'KEY' is not walked instead
    GET DIAGNOSTICS moved = ROW_COUNT;
    RETURN moved;
END $$;

-- What stood in the way of its key may do so no longer.
CREATE FUNCTION outbox.release_behind(relay integer, seqs bigint[]) RETURNS void
    LANGUAGE plpgsql
    SET plan_cache_mode = force_generic_plan
    SET enable_seqscan = off SET enable_bitmapscan = off AS $$
BEGIN
    PERFORM outbox.release_keys(relay, ARRAY(
        SELECT DISTINCT d.key_hash FROM outbox.delivery d
         WHERE d.relay_id = relay AND d.seq = ANY (seqs) AND d.key_hash IS NOT NULL));
END $$;

-- In case nobody noticed that a key was freed: the next so many keys that have waiting events, those
-- in `lanes` only. Returns the last of them, to go on from; NULL after the last one.
CREATE FUNCTION outbox.sweep_keys(relay integer, lanes smallint[], after bigint, key_limit integer)
    RETURNS bigint LANGUAGE plpgsql
    SET plan_cache_mode = force_generic_plan
    SET enable_seqscan = off SET enable_bitmapscan = off
    SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
    keys bigint[];
BEGIN
    WITH RECURSIVE parked AS (  -- one probe each
        (SELECT d.key_hash, 1 AS n FROM outbox.delivery d
          WHERE d.relay_id = relay AND d.hold = 'KEY' AND d.key_hash > sweep_keys.after
          ORDER BY d.key_hash LIMIT 1)
        UNION ALL
        SELECT next.key_hash, p.n + 1 FROM parked p, LATERAL (
            SELECT d.key_hash FROM outbox.delivery d
             WHERE d.relay_id = relay AND d.hold = 'KEY' AND d.key_hash > p.key_hash
             ORDER BY d.key_hash LIMIT 1) next
         WHERE p.n < key_limit
    )
    SELECT array_agg(p.key_hash ORDER BY p.n) INTO keys FROM parked p;
    PERFORM outbox.release_keys(relay, ARRAY(
        SELECT k FROM unnest(keys) k WHERE outbox.lane_of(k, 0) = ANY (lanes)));
    RETURN CASE WHEN cardinality(keys) = key_limit THEN keys[key_limit] END;
END $$;

-- Choose in order: from the caller's own lanes only, in seq order, and nothing whose key has an
-- earlier event that waits. `holder` proves that the lanes are still ours: whoever takes them over
-- locks that row, so either this claim is committed before, or it finds the row gone. FOR KEY SHARE,
-- which leaves the row's lease free to be renewed meanwhile.
CREATE FUNCTION outbox.choose_ordered(
    relay integer, holder bigint, lanes smallint[], row_limit integer, lane_limit integer,
    floor bigint, suspects boolean, OUT chosen bigint[], OUT line_from bigint
) LANGUAGE plpgsql
    SET plan_cache_mode = force_generic_plan
    SET enable_seqscan = off SET enable_bitmapscan = off
    SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
    in_line boolean := EXISTS (SELECT 1 FROM unnest(lanes) AS own (lane), LATERAL (
                                   SELECT 1 FROM outbox.delivery d
                                    WHERE d.relay_id = relay AND d.lane = own.lane
                                      AND d.state = 'PENDING' AND d.hold = 'NONE' AND d.seq > floor
                                    LIMIT 1) l);
    behind bigint[];
    early bigint[];
BEGIN
    suspects := suspects AND EXISTS (SELECT 1 FROM outbox.delivery d
                                      WHERE d.relay_id = relay AND d.state = 'PENDING'
                                        AND d.hold = 'SUSPECT' AND d.available_at <= now()
                                        AND d.lane = ANY (lanes));
    IF NOT suspects AND NOT in_line
       AND NOT EXISTS (SELECT 1 FROM outbox.delivery d
                        WHERE d.relay_id = relay AND d.state = 'PENDING' AND d.hold = 'TIME'
                          AND d.available_at <= now() AND d.lane = ANY (lanes)) THEN
        RETURN;  -- a look that finds nothing writes nothing
    END IF;
    -- An event that was inserted before we registered comes before the later ones of its key. Not so
    -- what waits for others who registered since: we were already offered it.
    IF EXISTS (SELECT 1 FROM outbox.unmatched u
                WHERE u.version < (SELECT r.version FROM outbox.relay r WHERE r.id = relay)) THEN
        PERFORM outbox.route_unmatched(greatest(row_limit, 5000));
        RETURN;
    END IF;
    -- Before anything is chosen: whoever changes a key by hand locks this row too, so that what we
    -- choose below is in the order that they left.
    PERFORM 1 FROM outbox.holder h WHERE h.token = holder AND h.expires_at > now() FOR KEY SHARE;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    WITH ready AS MATERIALIZED (
        SELECT d.seq, d.lane, d.key_hash, d.crashes, d.bytes
          FROM outbox.delivery d
         WHERE d.relay_id = relay AND d.state = 'PENDING'
           AND d.hold = CASE WHEN suspects THEN 'SUSPECT' ELSE 'TIME' END::outbox.hold
           AND d.hold IN ('TIME', 'SUSPECT')
           AND d.available_at <= now() AND d.lane = ANY (lanes)
         ORDER BY d.available_at, d.seq
         LIMIT CASE WHEN in_line AND NOT suspects THEN outbox.due_share(row_limit) ELSE row_limit END
    ), front AS MATERIALIZED (  -- the first in line of each of their lanes
        SELECT l.lane, f.seq FROM (SELECT DISTINCT r.lane FROM ready r WHERE NOT suspects) l,
            LATERAL (SELECT d.seq FROM outbox.delivery d
                      WHERE d.relay_id = relay AND d.lane = l.lane
                        AND d.state = 'PENDING' AND d.hold = 'NONE' AND d.seq > floor
                      ORDER BY d.seq LIMIT 1) f
    ), early AS MATERIALIZED (
        -- The time that its producer set for it has come, and earlier events of its key may still
        -- be in line: it goes there too. (Not below the watermark: that is below who is first.)
        SELECT r.seq FROM ready r, front f
         WHERE r.key_hash IS NOT NULL AND f.lane = r.lane AND f.seq < r.seq
    ), due AS MATERIALIZED (
        SELECT b.seq, b.key_hash, b.crashes, b.bytes FROM (
            SELECT r.*, sum(r.bytes) OVER (ORDER BY r.seq ROWS UNBOUNDED PRECEDING) - r.bytes AS before
              FROM ready r WHERE r.seq NOT IN (SELECT e.seq FROM early e)) b
         WHERE b.before = 0 OR suspects OR NOT in_line
            OR b.before + b.bytes <= outbox.due_share(outbox.bytes_per_claim())
    ), line AS (
        SELECT l.* FROM unnest(lanes) AS own (lane), LATERAL (
            SELECT d.seq, d.key_hash, d.crashes, d.bytes FROM outbox.delivery d
             WHERE d.relay_id = relay AND d.lane = own.lane
               AND d.state = 'PENDING' AND d.hold = 'NONE' AND d.seq > floor
             ORDER BY d.seq LIMIT lane_limit) l
         WHERE NOT suspects
         ORDER BY l.seq LIMIT row_limit - (SELECT count(*) FROM due)
    ), candidate AS MATERIALIZED (  -- what is cut off is the end, in seq order: no key has a gap
        SELECT * FROM (
            SELECT c.*, sum(c.bytes) OVER (ORDER BY c.seq ROWS UNBOUNDED PRECEDING) - c.bytes AS before
              FROM (SELECT * FROM due UNION ALL SELECT * FROM line) c) b
         WHERE b.before < outbox.bytes_per_claim()
    ), barrier AS MATERIALIZED (  -- per key, the first that waits and is not among the candidates
        SELECT k.key_hash, w.seq
          FROM (SELECT DISTINCT c.key_hash FROM candidate c
                 WHERE c.key_hash IS NOT NULL
                   -- asked once, and in this view of the database: an event that comes back while
                   -- we look is either seen here, or its later ones were in flight before
                   AND EXISTS (SELECT 1 FROM outbox.delivery o WHERE o.relay_id = relay
                                  AND o.hold <> 'NONE' AND o.key_hash IS NOT NULL)) k,
               LATERAL (SELECT h.seq FROM outbox.delivery h
                         WHERE h.relay_id = relay AND h.key_hash = k.key_hash AND h.hold <> 'NONE'
                           AND h.seq NOT IN (SELECT due.seq FROM due)
                         ORDER BY h.seq LIMIT 1) w
    ), judged AS (
        SELECT c.crashes, c.seq,
               EXISTS (SELECT 1 FROM barrier b
                        WHERE b.key_hash = c.key_hash AND b.seq < c.seq) AS waits
          FROM candidate c
    ), ranked AS (  -- among those that do not wait: which one it is, and how many loners are up to it
        SELECT j.*, row_number() OVER (PARTITION BY j.waits ORDER BY j.seq) AS n,
               count(*) FILTER (WHERE j.crashes >= 2) OVER (PARTITION BY j.waits ORDER BY j.seq)
                   AS loners
          FROM judged j
    )
    -- Suspects as in choose(): small groups, then one at a time; what is behind a loner may be of
    -- its key. Those who wait do so elsewhere: here they would take the others' places for ever.
    SELECT array_agg(r.seq ORDER BY r.seq) FILTER (WHERE NOT r.waits AND (
               NOT suspects OR CASE WHEN r.n = 1 THEN true ELSE r.loners = 0 AND r.n <= 50 END)),
           array_agg(r.seq) FILTER (WHERE r.waits),
           (SELECT array_agg(e.seq) FROM early e),
           (SELECT min(l.seq) FROM line l)
      INTO chosen, behind, early, line_from
      FROM ranked r
     -- again, in the same view of the database in which the candidates were found
     WHERE NOT EXISTS (SELECT 1 FROM outbox.unmatched u
                        WHERE u.version < (SELECT r.version FROM outbox.relay r WHERE r.id = relay));
    IF behind IS NOT NULL THEN  -- out of the line, so that nobody steps over them again and again
        UPDATE outbox.delivery d SET hold = 'KEY'
         WHERE d.relay_id = relay AND d.seq = ANY (behind) AND d.state::text = 'PENDING'
           AND d.key_hash IS NOT NULL;  -- it was just taken out of its lane: see relane
    END IF;
    IF early IS NOT NULL THEN
        UPDATE outbox.delivery d SET hold = 'NONE'
         WHERE d.relay_id = relay AND d.seq = ANY (early)
           AND d.state::text = 'PENDING';  -- as text: see release_keys
    END IF;
END $$;

-- The claim itself: what was chosen is ours, under the token `fence`, which the caller has drawn: so
-- it knows what may be its own also where the answer is lost. By key: what was chosen in order is not
-- locked. No other condition that an index could serve: with poor statistics the planner would walk
-- that instead. With a `holder` it is a claim in order. One function, because every function that a
-- row passes through copies it once more.
-- Who is in line is due, whatever its available_at says: that is when its producer's transaction
-- began, which may be after ours did, or the clock was set back. Left out, it would be overtaken by
-- the next of its key. `least`, so that nothing is ever claimed before its available_at.
-- `name` is whom we mean by `relay`: in a database that was restored the id may be another relay's.
-- `floor` holds for one server, which `server` names by its start: on any other, after a failover or
-- a restore, seqs below it may be given out again.
-- A traceparent is a line of 55 characters; whatever else is in that place is not carried.
CREATE FUNCTION outbox.claim(
    relay integer, name text, owner text, fence bigint, row_limit integer, lease interval, floor bigint,
    server timestamptz, suspects boolean, durable boolean, holder bigint DEFAULT NULL,
    lanes smallint[] DEFAULT NULL, lane_limit integer DEFAULT NULL
) RETURNS SETOF outbox.claimed LANGUAGE plpgsql
    SET plan_cache_mode = force_generic_plan
    SET enable_seqscan = off SET enable_bitmapscan = off
    SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
    chosen bigint[];
    line_from bigint;
BEGIN
    PERFORM 1 FROM outbox.relay r WHERE r.id = relay AND r.name = claim.name;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    IF server IS DISTINCT FROM pg_postmaster_start_time() THEN
        floor := 0;
    END IF;
    IF holder IS NULL THEN
        SELECT c.chosen, c.line_from INTO chosen, line_from
          FROM outbox.choose(relay, row_limit, floor, suspects) c;
    ELSE
        SELECT c.chosen, c.line_from INTO chosen, line_from
          FROM outbox.choose_ordered(relay, holder, lanes, row_limit, lane_limit, floor, suspects) c;
    END IF;
    IF chosen IS NULL THEN
        RETURN;
    END IF;
    IF NOT durable THEN
        -- A claim that a crash of the server takes back never was: no need to wait for the disk.
        -- Not so what ends a claim, so a transaction that does both is durable.
        PERFORM set_config('synchronous_commit', 'off', true);
    END IF;
    RETURN QUERY
    WITH mine AS (
        UPDATE outbox.delivery d SET
            state = 'CLAIMED', hold = 'NONE', attempts = d.attempts + 1, claimed_at = now(),
            claimed_by = owner, claim_token = fence, lease_until = now() + lease,
            available_at = least(d.available_at, now())
         WHERE d.relay_id = relay AND d.seq = ANY (chosen) AND d.state = 'PENDING'
           AND (d.hold = 'NONE' OR d.available_at <= now())
        RETURNING d.seq, d.attempts, d.attempts_base, d.crashes, d.lane, d.age_from)
    SELECT d.seq, fence, now(), d.attempts, d.attempts_base, d.crashes, d.lane,
           e.event_id::text, e.event_type, e.payload, e.content_type, e.headers::text,
           CASE WHEN length(e.metadata->>'traceparent') <= 512 THEN e.metadata->>'traceparent' END,
           e.partition_key, e.ordering_key, e.tenant_id,
           e.correlation_id, e.causation_id::text, e.idempotency_key, e.aggregate_type,
           e.aggregate_id, CASE WHEN outbox.in_calendar(e.occurred_at) THEN e.occurred_at END,
           e.created_at, e.max_attempts, line_from, d.age_from
      FROM mine d JOIN outbox.event e ON e.seq = d.seq;
END $$;

-- Published. Fenced by the claim's token: what was lost to another relay meanwhile is not touched
-- but returned. By key, because a renewal may move the row at this very moment: by its address it
-- would be passed over, published and yet still claimed. The list twice, once for the index and once
-- for the join: so the plan reads these rows and no others, whatever the statistics say. (And no
-- `state = 'CLAIMED'`: the index of claimed rows would win the plan.)
CREATE FUNCTION outbox.finish_published(
    relay integer, fence bigint, seqs bigint[], results text[]
) RETURNS SETOF bigint LANGUAGE plpgsql
    SET plan_cache_mode = force_generic_plan
    SET enable_seqscan = off SET enable_bitmapscan = off
    SET enable_nestloop = off SET enable_mergejoin = off AS $$
DECLARE
    done integer;
BEGIN
    UPDATE outbox.delivery d SET
        state = 'PUBLISHED', published_at = now(), result = v.result, crashes = 0,
        claimed_at = NULL, claimed_by = NULL, claim_token = NULL, lease_until = NULL
      FROM unnest(seqs, results) AS v (seq, result)
     WHERE d.relay_id = relay AND d.seq = ANY (seqs) AND d.seq = v.seq AND d.claim_token = fence;
    GET DIAGNOSTICS done = ROW_COUNT;
    IF EXISTS (SELECT 1 FROM outbox.delivery p WHERE p.relay_id = relay AND p.hold = 'KEY') THEN
        PERFORM outbox.release_behind(relay, seqs);
    END IF;
    IF done < cardinality(seqs) THEN
        -- Not lost is what we wrote in a first try whose answer never reached us.
        RETURN QUERY SELECT v.seq FROM unnest(seqs, results) AS v (seq, result)
          LEFT JOIN outbox.delivery d ON d.relay_id = relay AND d.seq = ANY (seqs) AND d.seq = v.seq
         WHERE d.result IS DISTINCT FROM v.result OR d.state::text <> 'PUBLISHED';
    END IF;
END $$;

-- Not published: back to PENDING or to DEAD, each with its own reason. Returns what was lost.
CREATE FUNCTION outbox.finish_failed(
    relay integer, seqs bigint[], fences bigint[], states text[], holds text[],
    delays double precision[],  -- seconds from now until it is due
    refunds boolean[],          -- it was no attempt of its own: the budget is not touched
    crashed boolean[],          -- its lease ran out
    errors text[]               -- {"class", "code", "text"} or null to keep the last one
) RETURNS SETOF bigint LANGUAGE plpgsql
    SET plan_cache_mode = force_generic_plan
    SET enable_seqscan = off SET enable_bitmapscan = off
    SET enable_nestloop = off SET enable_mergejoin = off AS $$
DECLARE
    done bigint[];
BEGIN
    WITH ended AS (
        UPDATE outbox.delivery d SET
            state = v.state::outbox.state,
            -- A relay that stopped ordering meanwhile has no keys that anybody would wait for.
            hold = CASE WHEN d.key_hash IS NOT NULL THEN v.hold WHEN v.hold = 'KEY' THEN 'TIME'
                        WHEN v.hold = 'DEAD' THEN 'NONE' ELSE v.hold END::outbox.hold,
            available_at = CASE WHEN v.state = 'PENDING'
                                THEN now() + make_interval(secs => v.delay)
                                ELSE d.available_at END,
            attempts_base = d.attempts_base + v.refund::integer,
            crashes = CASE WHEN v.crash THEN d.crashes + 1 ELSE 0 END,
            last_error = coalesce(v.error::jsonb || jsonb_build_object('at', now()), d.last_error),
            claimed_at = NULL, claimed_by = NULL, claim_token = NULL, lease_until = NULL
          FROM unnest(seqs, fences, states, holds, delays, refunds, crashed, errors)
               AS v (seq, fence, state, hold, delay, refund, crash, error)
         WHERE d.relay_id = relay AND d.seq = ANY (seqs) AND d.seq = v.seq
           AND d.claim_token = v.fence
        RETURNING d.seq)
    SELECT array_agg(e.seq) INTO done FROM ended e;
    IF EXISTS (SELECT 1 FROM outbox.delivery p WHERE p.relay_id = relay AND p.hold = 'KEY') THEN
        PERFORM outbox.release_behind(relay, seqs);
    END IF;
    RETURN QUERY SELECT s FROM unnest(seqs) s EXCEPT SELECT s FROM unnest(done) s;
END $$;

-- The claims of `fence` are ours for longer. Returns how many still were.
CREATE FUNCTION outbox.renew(relay integer, fence bigint, seqs bigint[], lease interval)
    RETURNS integer LANGUAGE plpgsql
    SET plan_cache_mode = force_generic_plan
    SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    done integer;
BEGIN
    UPDATE outbox.delivery d SET lease_until = now() + lease
     WHERE d.relay_id = relay AND d.seq = ANY (seqs) AND d.claim_token = fence;
    GET DIAGNOSTICS done = ROW_COUNT;
    RETURN done;
END $$;

-- Too old to be published: what is next in line and older than max_age becomes DEAD. What a person
-- brought back, or told when to go out, is as old as that decision: else yesterday's events would
-- be buried in the moment in which they are replayed. It goes through CLAIMED as the lifecycle asks,
-- in this transaction, and no attempt is counted.
CREATE FUNCTION outbox.expire(
    relay integer, name text, owner text, lanes smallint[], row_limit integer, floor bigint,
    max_age interval, block boolean
) RETURNS TABLE (seq bigint, event_id text) LANGUAGE plpgsql
    SET plan_cache_mode = force_generic_plan
    SET enable_seqscan = off SET enable_bitmapscan = off
    SET enable_hashjoin = off SET enable_mergejoin = off AS $$
#variable_conflict use_column
DECLARE
    old bigint[];
BEGIN
    WITH next AS (
        SELECT l.seq, l.age_from FROM unnest(lanes) AS own (lane), LATERAL (
            SELECT d.seq, d.age_from FROM outbox.delivery d
             WHERE d.relay_id = relay AND d.lane = own.lane
               AND d.state = 'PENDING' AND d.hold = 'NONE' AND d.seq > floor
             ORDER BY d.seq LIMIT row_limit) l
        UNION ALL
        (SELECT d.seq, d.age_from FROM outbox.delivery d
          WHERE d.relay_id = relay AND d.state = 'PENDING' AND d.hold = 'TIME'
            AND d.available_at <= now() AND d.lane = ANY (lanes)
          ORDER BY d.available_at LIMIT row_limit)
    )
    SELECT array_agg(n.seq) INTO old FROM next n JOIN outbox.event e ON e.seq = n.seq
     WHERE coalesce(n.age_from, e.created_at) < now() - max_age
       AND EXISTS (SELECT 1 FROM outbox.relay r WHERE r.id = relay AND r.name = expire.name);
    IF old IS NULL THEN
        RETURN;
    END IF;
    SELECT array_agg(l.seq) INTO old FROM (
        SELECT d.seq FROM outbox.delivery d
         WHERE d.relay_id = relay AND d.seq = ANY (old) AND d.state = 'PENDING'
           AND (d.age_from IS NULL OR d.age_from < now() - max_age)  -- nobody brought it back just now
           FOR UPDATE SKIP LOCKED) l;
    UPDATE outbox.delivery d SET
        state = 'CLAIMED', hold = 'NONE', claimed_at = now(), claimed_by = owner,
        claim_token = 0, lease_until = now()
     WHERE d.relay_id = relay AND d.seq = ANY (old);
    RETURN QUERY
    WITH dead AS (
        UPDATE outbox.delivery d SET
            state = 'DEAD',
            hold = CASE WHEN block AND d.key_hash IS NOT NULL THEN 'DEAD' ELSE 'NONE' END::outbox.hold,
            last_error = jsonb_build_object('class', 'expired', 'code', 'MAX_AGE', 'at', now(),
                             'text', format('older than the relay''s maxAge of %s', max_age)),
            claimed_at = NULL, claimed_by = NULL, claim_token = NULL, lease_until = NULL
         WHERE d.relay_id = relay AND d.seq = ANY (old)
        RETURNING d.seq)
    SELECT dead.seq, e.event_id::text FROM dead JOIN outbox.event e ON e.seq = dead.seq;
    PERFORM outbox.release_behind(relay, old);  -- where the dead hold nobody up
END $$;

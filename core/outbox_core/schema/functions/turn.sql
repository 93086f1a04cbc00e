-- One round of a relay's worker: what it has published is recorded, and the next events are claimed. It is
-- one function, because for a few events the number of statements costs more than the rows. And it is a
-- function, like the others that relays call, for two reasons. The backend caches its plan, even behind a
-- pooler that forbids prepared statements; and it has its own planner settings, because a plan made while
-- the table was empty must not scan all of it when a million rows wait.

-- `published` and `results` are the events of the claim `ended` that the broker has acknowledged. Those of
-- them that were taken over meanwhile come first, as rows that have a seq and nothing else.
--
-- Then the claim: claims what was chosen under the token `fence`, which the caller has drawn: so the
-- caller can find its claims even if the answer is lost. What is claimed for the first time becomes a
-- batch, see batch.sql; the others are claimed each in its row. By key, because what choose_ordered chose is not
-- locked. With a `holder` it is a claim in order. One function, because every function
-- that a row passes through copies it once more.
-- A delivery in line is due, whatever its available_at: that is when its producer's transaction began,
-- which may be after ours began, or the clock was set back. If it were left out, the next event of its key
-- would overtake it. `least`, so that nothing is ever claimed before its available_at.
-- `name` must be the name of `relay`: in a restored database the id may be another relay's.
-- `floor` is valid for one server, which `server` identifies by its start time: on any other, after a
-- failover or a restore, seqs below it may be handed out again.
-- A traceparent has 55 characters; anything much longer is not one, and is left out.
CREATE OR REPLACE FUNCTION outbox.turn(
    relay integer, name text, owner text, fence bigint, row_limit integer, lease interval, floor bigint,
    server timestamptz, suspects boolean, durable boolean, holder bigint DEFAULT NULL,
    lanes smallint[] DEFAULT NULL, lane_limit integer DEFAULT NULL, ended bigint DEFAULT NULL,
    published bigint[] DEFAULT NULL, results text[] DEFAULT NULL
) RETURNS SETOF outbox.claimed LANGUAGE plpgsql  -- planned in loops: ../planner.sql
    AS $$
DECLARE
    fresh bigint[];
    fresh_lanes smallint[] := '{-1}';
    others bigint[];
    line_from bigint;
    lost outbox.claimed;
BEGIN
    IF published IS NOT NULL THEN
        -- By assignment: a query around the call would cost as much as recording an event.
        FOREACH lost.seq IN ARRAY outbox.record_published(relay, ended, published, results) LOOP
            RETURN NEXT lost;
        END LOOP;
    END IF;
    PERFORM 1 FROM outbox.relay r WHERE r.id = relay AND r.name = turn.name;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    IF server IS DISTINCT FROM pg_postmaster_start_time() THEN
        floor := 0;
    END IF;
    IF holder IS NULL THEN
        SELECT c.fresh, c.others, c.line_from INTO fresh, others, line_from
          FROM outbox.choose(relay, row_limit, floor, suspects) c;
    ELSE
        SELECT c.fresh, c.fresh_lanes, c.others, c.line_from INTO fresh, fresh_lanes, others, line_from
          FROM outbox.choose_ordered(relay, holder, lanes, row_limit, lane_limit, floor, suspects) c;
    END IF;
    IF fresh IS NULL AND others IS NULL THEN
        RETURN;
    END IF;
    IF NOT durable AND published IS NULL THEN
        -- If a crash of the server undoes a claim, nothing is lost: no need to wait for the disk. The end
        -- of a claim must be durable, so a transaction that does both is.
        PERFORM set_config('synchronous_commit', 'off', true);
    END IF;
    IF fresh IS NOT NULL THEN
        INSERT INTO outbox.batch (token, relay_id, claimed_at, claimed_by, lease_until, lanes, seqs)
        VALUES (fence, relay, now(), owner, now() + lease, fresh_lanes, fresh);
        RETURN QUERY
        SELECT e.seq, fence, now(), 1, 0, 0::smallint,
               outbox.delivery_lane(holder IS NOT NULL, e.ordering_key, e.seq),
               e.event_id::text, e.event_type, e.payload, e.content_type, e.headers::text,
               CASE WHEN length(e.metadata->>'traceparent') <= 512 THEN e.metadata->>'traceparent' END,
               e.partition_key, e.ordering_key, e.tenant_id,
               e.correlation_id, e.causation_id::text, e.idempotency_key, e.aggregate_type,
               e.aggregate_id, CASE WHEN outbox.in_calendar(e.occurred_at) THEN e.occurred_at END,
               e.created_at, e.max_attempts, line_from, NULL::timestamptz, false
          FROM outbox.rows_of(relay, fresh) c JOIN outbox.event e ON e.seq = c.seq;
    END IF;
    IF others IS NOT NULL THEN
        RETURN QUERY
        WITH mine AS (
            UPDATE outbox.delivery d SET
                state = 'CLAIMED', hold = 'NONE', attempts = d.attempts + 1, claimed_at = now(),
                claimed_by = owner, claim_token = fence, lease_until = now() + lease,
                available_at = least(d.available_at, now())
              FROM outbox.rows_of(relay, others) c
             WHERE d.relay_id = c.relay_id AND d.seq = c.seq AND d.state = 'PENDING'
               AND (d.hold = 'NONE' OR d.available_at <= now())
            RETURNING d.seq, d.attempts, d.attempts_base, d.crashes, d.lane, d.age_from,
                      d.previous_published_at IS NOT NULL AS was_published)
        SELECT d.seq, fence, now(), d.attempts, d.attempts_base, d.crashes, d.lane,
               e.event_id::text, e.event_type, e.payload, e.content_type, e.headers::text,
               CASE WHEN length(e.metadata->>'traceparent') <= 512 THEN e.metadata->>'traceparent' END,
               e.partition_key, e.ordering_key, e.tenant_id,
               e.correlation_id, e.causation_id::text, e.idempotency_key, e.aggregate_type,
               e.aggregate_id, CASE WHEN outbox.in_calendar(e.occurred_at) THEN e.occurred_at END,
               e.created_at, e.max_attempts, line_from, d.age_from, d.was_published
          FROM mine d JOIN outbox.event e ON e.seq = d.seq;
    END IF;
END $$;

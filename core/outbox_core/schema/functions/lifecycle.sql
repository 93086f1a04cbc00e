-- The lifecycle: which changes of a delivery are allowed. Called by the triggers of outbox.delivery, for
-- every user.

CREATE OR REPLACE FUNCTION outbox.delivery_starts_pending() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    -- What a batch gives up, see batch.sql. Not a part of the trigger's condition, which every INSERT parses.
    -- Relays may not insert deliveries: only functions of the schema's owner do.
    IF pg_trigger_depth() > 1 AND current_setting('outbox.moving', true) = 'on' THEN
        RETURN NEW;
    END IF;
    RAISE EXCEPTION 'outbox: a delivery starts as PENDING with no attempts, not as % with %',
        NEW.state, NEW.attempts USING ERRCODE = 'restrict_violation';
END $$;

CREATE OR REPLACE FUNCTION outbox.delivery_keeps_the_rules() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    rule text := CASE
        WHEN (NEW.relay_id, NEW.seq) IS DISTINCT FROM (OLD.relay_id, OLD.seq)
            THEN 'a delivery keeps its relay and its event'
        WHEN NEW.attempts < OLD.attempts
            THEN format('attempts never fall (%s to %s)', OLD.attempts, NEW.attempts)
        WHEN NEW.attempts_base < OLD.attempts_base
            THEN format('attempts_base never falls (%s to %s)', OLD.attempts_base, NEW.attempts_base)
        WHEN NEW.attempts_base > NEW.attempts
            THEN format('attempts_base (%s) is at most attempts (%s)', NEW.attempts_base, NEW.attempts)
        WHEN NEW.hold <> 'NONE' AND NEW.state <> CASE NEW.hold WHEN 'DEAD' THEN 'DEAD'
                                                              ELSE 'PENDING' END::outbox.state
            THEN format('hold %s does not go with state %s', NEW.hold, NEW.state)
        WHEN NEW.hold = 'KEY' AND NEW.key_hash IS NULL
            THEN 'hold KEY needs a key: without one nothing would ever release it'
        WHEN NEW.state = 'PENDING' AND NEW.hold = 'NONE'
             AND (OLD.state <> 'PENDING' OR OLD.hold NOT IN ('NONE', 'TIME'))
            THEN 'a delivery that becomes PENDING again has hold TIME: in line a relay may miss it'
        WHEN NEW.available_at <> OLD.available_at AND NOT outbox.is_schedule(NEW.available_at)
            THEN 'available_at is within the years 1 to 9999, or infinity'
        WHEN NEW.state = 'PENDING' AND NEW.hold = 'NONE' AND NEW.available_at = 'infinity'
            THEN 'a delivery in line is due: available_at infinity needs hold TIME'
        WHEN NEW.age_from IS DISTINCT FROM OLD.age_from AND NOT outbox.in_calendar(NEW.age_from)
            THEN 'age_from is within the years 1 to 9999'
        WHEN NEW.attempts > OLD.attempts AND NOT (OLD.state = 'PENDING' AND NEW.state = 'CLAIMED'
                                                  AND NEW.attempts = OLD.attempts + 1)
            THEN 'attempts grow by one, and only in a claim'
        WHEN OLD.state = NEW.state AND NEW.published_at IS DISTINCT FROM OLD.published_at
            THEN 'published_at does not change'
        WHEN OLD.state = NEW.state AND NEW.claimed_at IS DISTINCT FROM OLD.claimed_at
            THEN 'claimed_at does not change within a claim; a renewal changes lease_until'
        WHEN NEW.state <> OLD.state AND NEW.state <> ALL (
                 CASE OLD.state WHEN 'PENDING' THEN '{CLAIMED}'
                                WHEN 'CLAIMED' THEN '{PENDING, PUBLISHED, DEAD}'
                                ELSE '{PENDING}' END::outbox.state[])
            THEN format('%s does not become %s', OLD.state, NEW.state)
        WHEN NEW.previous_published_at IS DISTINCT FROM
                 CASE WHEN OLD.state = 'PUBLISHED' AND NEW.state = 'PENDING' THEN OLD.published_at
                      ELSE OLD.previous_published_at END
            THEN 'previous_published_at is the published_at from before a replay'
        WHEN OLD.state = 'PENDING' AND NEW.state = 'CLAIMED' AND NEW.available_at > now()
            THEN format('it cannot be claimed before its available_at (%s)', NEW.available_at)
    END;
BEGIN
    IF rule IS NULL THEN
        RETURN NEW;
    END IF;
    RAISE EXCEPTION 'outbox: %', rule USING ERRCODE = 'restrict_violation',
        DETAIL = format('relay %s, seq %s', OLD.relay_id, OLD.seq),
        HINT = 'PENDING > CLAIMED > PUBLISHED, PENDING or DEAD; PUBLISHED, DEAD > PENDING by replay.';
END $$;

-- Lane and key follow from the event; -1 and NULL if the relay does not order. Not checked on INSERT,
-- which would cost every producer: only fan_out.sql and functions insert deliveries. Without planner
-- settings of its own, which would cost more than the look-up by primary key.
CREATE OR REPLACE FUNCTION outbox.delivery_keeps_its_lane() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    key text := (SELECT e.ordering_key FROM outbox.event e WHERE e.seq = NEW.seq);
BEGIN
    IF NEW.lane = outbox.delivery_lane(true, key, NEW.seq)
       AND NEW.key_hash IS NOT DISTINCT FROM outbox.delivery_key(true, key) THEN
        RETURN NEW;
    END IF;
    RAISE EXCEPTION 'outbox: lane % and key_hash % are not those of the event''s ordering key',
        NEW.lane, coalesce(NEW.key_hash::text, 'NULL') USING ERRCODE = 'restrict_violation',
        DETAIL = format('relay %s, seq %s', NEW.relay_id, NEW.seq),
        HINT = 'lane_of(key_hash(ordering_key), seq) if the relay orders, otherwise -1 and NULL.';
END $$;

-- The rules of bulk replays: a request and a plan do not change, and what was done stays on record. Called
-- by triggers.

CREATE OR REPLACE FUNCTION outbox.replay_is_kept() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'outbox: % of outbox.% is not allowed: %', TG_OP, TG_TABLE_NAME,
        CASE TG_TABLE_NAME WHEN 'replay_chunk' THEN 'a plan does not change'
                           ELSE 'it records what was done' END
        USING ERRCODE = 'restrict_violation', HINT = 'Another replay is another OutboxReplay.';
END $$;

CREATE OR REPLACE FUNCTION outbox.replay_goes_on() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'outbox: replay % is already %', OLD.id,
        CASE WHEN OLD.finished_at IS NULL THEN 'planned' ELSE 'finished' END
        USING ERRCODE = 'restrict_violation', HINT = 'Another replay is another OutboxReplay.';
END $$;

-- A plan may be deleted when it is no longer needed: its replay is finished, or its relay retired. The
-- request, the figures and the ledger stay.
CREATE OR REPLACE FUNCTION outbox.plan_is_over(replay text) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT p.finished_at IS NOT NULL OR r.retirement IS NOT NULL
      FROM outbox.replay p JOIN outbox.relay r ON r.id = p.relay_id WHERE p.id = plan_is_over.replay $$;

CREATE OR REPLACE FUNCTION outbox.replay_needs_its_plan() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF outbox.plan_is_over(OLD.replay_id) THEN
        RETURN OLD;
    END IF;
    RAISE EXCEPTION 'outbox: DELETE of outbox.replay_chunk is not allowed: replay % is not finished',
        OLD.replay_id USING ERRCODE = 'restrict_violation',
        HINT = 'A plan is deleted automatically when its replay is done.';
END $$;

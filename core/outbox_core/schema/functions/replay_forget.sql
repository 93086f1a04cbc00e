-- Deletes the plans of replays that are over. Called at the end of a replay.

-- Deletes up to row_limit chunks of such plans; returns how many. With its owner's rights: nobody else
-- may delete them. Replay by replay, because there are few replays, but maybe many chunks.
-- Planned by index, for each call: ../planner.sql.
CREATE OR REPLACE FUNCTION outbox.forget_plans(row_limit integer) RETURNS integer
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS $$
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

-- Merging: a quiet relay publishes a few events at a time, and leaves a row of outbox.published for each of
-- these times. Called by relays, regularly: so there are few rows however long the history is, and one
-- event is found, and all are counted, by reading few.

-- Rows with fewer members than this are merged. As in the condition of the index published_small.
CREATE OR REPLACE FUNCTION outbox.least_published() RETURNS integer
    LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$ SELECT 500 $$;

-- Merges the oldest small rows into one that is no longer small; returns how many they were, or 0 if all
-- of them together would still be small. Each event is moved once.
CREATE OR REPLACE FUNCTION outbox.merge_published(relay integer) RETURNS integer
    LANGUAGE plpgsql  -- planned by index: ../planner.sql
    AS $$
DECLARE
    small bigint[];
    members bigint[];
BEGIN
    SELECT array_agg(s.token) INTO small FROM (
        SELECT c.token, sum(c.size) OVER (ORDER BY c.last_seq ROWS UNBOUNDED PRECEDING) - c.size AS before
          FROM (SELECT p.token, p.size, p.last_seq FROM outbox.published p
                 WHERE p.relay_id = relay AND p.size < 500
                 ORDER BY p.last_seq LIMIT outbox.least_published() FOR UPDATE SKIP LOCKED) c) s
     WHERE s.before < outbox.least_published();
    SELECT array_agg(m ORDER BY m) INTO members
      FROM outbox.published p, unnest(p.seqs) m WHERE p.token = ANY (small);
    IF cardinality(small) < 2 OR members IS NULL OR cardinality(members) < outbox.least_published() THEN
        RETURN 0;
    END IF;
    UPDATE outbox.published p SET seqs = members WHERE p.token = small[1];
    RETURN cardinality(small);
END $$;

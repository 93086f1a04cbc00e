-- A list of deliveries as rows to join with outbox.delivery: each is then looked up by its primary key,
-- whatever the statistics are. Called by the functions that change deliveries; a planner puts its text in
-- their place.
--
-- `d.relay_id = relay AND d.seq = ANY (seqs)` does not ensure that. In a small table it looks cheaper to
-- read all rows of the relay and to compare each with the list; and a plan that was made then stays in use
-- while the table grows: every claim would read all events that were ever published. Here the planner
-- knows neither that all rows have the same relay (OFFSET 0 hides it), so there is no index for all of
-- them, nor how many there are: by the range it expects a single one.
CREATE OR REPLACE FUNCTION outbox.rows_of(relay integer, seqs bigint[])
    RETURNS TABLE (relay_id integer, seq bigint) LANGUAGE sql STABLE AS $$
    SELECT relay, s FROM unnest(seqs) s WHERE s BETWEEN 1 AND 9223372036854775807 OFFSET 0
$$;

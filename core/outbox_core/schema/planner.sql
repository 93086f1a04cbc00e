-- Planner settings of the functions that relays, replays and retirements call: they apply while a function
-- runs, also to the functions that it calls. Applied after the functions, which lose them when they are
-- replaced.
--
-- The planner uses statistics, and those of an outbox are always old: empty a moment ago, a million rows
-- now. Then a plan that reads the whole table looks cheap, and stays in use. So the allowed kinds of plan
-- are fixed here.

DO $$
DECLARE
    f record;
    -- Never the whole table: there is an index for everything that is read.
    each_call CONSTANT text := 'SET enable_seqscan = off SET enable_bitmapscan = off';
    -- And planned once per connection: planning costs more than a claim.
    by_index CONSTANT text := each_call || ' SET plan_cache_mode = force_generic_plan';
    -- Joins: a look-up for each of a few rows.
    in_loops CONSTANT text := by_index || ' SET enable_hashjoin = off SET enable_mergejoin = off';
    -- Joins of a list parameter with the rows of that list.
    by_hash CONSTANT text := by_index || ' SET enable_nestloop = off SET enable_mergejoin = off';
BEGIN
    FOR f IN SELECT * FROM (VALUES
        ('claim', in_loops),
        ('choose', by_index || ' SET enable_sort = off'),  -- in the order of the index
        ('choose_ordered', in_loops),
        ('route_unmatched', in_loops),
        ('finish_published', by_hash),
        ('finish_failed', by_hash),
        ('release_behind', by_index),
        ('release_keys', in_loops || ' SET enable_nestloop = on'),  -- finish_* call it, by hash
        ('sweep_keys', in_loops),
        ('renew', by_index),
        ('expire', in_loops),
        ('drop_waiting', each_call),
        ('forget_plans', each_call),
        -- The higher costs that this causes must not start the JIT, which takes longer than a chunk.
        ('requeue', in_loops || ' SET jit = off'),
        ('backfill', in_loops || ' SET jit = off'),
        ('replay_take', in_loops || ' SET jit = off')
    ) AS planned (name, settings) LOOP
        EXECUTE format('ALTER FUNCTION outbox.%I %s', f.name, f.settings);
    END LOOP;
END $$;

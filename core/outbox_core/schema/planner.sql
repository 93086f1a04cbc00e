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
    -- And planned once per connection, because planning costs more than a claim; joins are a look-up for
    -- each row.
    in_loops CONSTANT text := each_call || ' SET plan_cache_mode = force_generic_plan'
                                           ' SET enable_hashjoin = off SET enable_mergejoin = off';
BEGIN
    FOR f IN SELECT * FROM (VALUES
        ('turn', in_loops),  -- and choose_ordered, record_published, which it calls
        ('choose', 'SET enable_sort = off'),  -- called by turn; in the order of the index
        ('route_unmatched', in_loops),
        ('finish_published', in_loops),
        ('finish_failed', in_loops),
        ('release_behind', in_loops),
        ('release_keys', in_loops),
        ('sweep_keys', in_loops),
        ('renew', in_loops),
        ('expire', in_loops),
        ('merge_published', each_call),
        ('unpack', in_loops),
        ('drop_waiting', each_call),
        ('forget_plans', each_call),
        -- The higher costs that this causes must not start the JIT, which takes longer than a chunk.
        ('requeue', in_loops || ' SET jit = off'),
        ('published_comes_back', in_loops || ' SET jit = off'),
        ('backfill', in_loops || ' SET jit = off'),
        ('replay_take', in_loops || ' SET jit = off')
    ) AS planned (name, settings) LOOP
        EXECUTE format('ALTER FUNCTION outbox.%I %s', f.name, f.settings);
    END LOOP;
END $$;

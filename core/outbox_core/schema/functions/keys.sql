-- Keys: what follows from an ordering key. Called by everything that makes, moves or checks deliveries.

CREATE OR REPLACE FUNCTION outbox.key_hash(key text) RETURNS bigint
    LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
    AS $$ SELECT hashtextextended(key, 0) $$;

CREATE OR REPLACE FUNCTION outbox.slot_of(key text) RETURNS integer
    LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
    AS $$ SELECT (hashtextextended(key, 0) & 65535)::integer $$;
COMMENT ON FUNCTION outbox.slot_of IS
    'The lock that an ordering key takes. Bulk inserts that ORDER BY it cannot deadlock each other.';

-- How many lanes an ordered relay has, and bands a bulk replay: more than the processes that a database
-- can serve, and few enough to check each. A power of two. The same as LANES in store/lanes.py, and as in
-- the CHECK of outbox.lane; a test compares them.
CREATE OR REPLACE FUNCTION outbox.lanes() RETURNS integer
    LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$ SELECT 64 $$;

CREATE OR REPLACE FUNCTION outbox.lane_of(key_hash bigint, seq bigint) RETURNS smallint
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$ SELECT (coalesce(key_hash, seq) & (outbox.lanes() - 1))::smallint $$;

-- A delivery's `key_hash` and `lane`, from its event's key; NULL and -1 if the relay does not order. (Not
-- STRICT, and one expression each: so they are inlined.)
CREATE OR REPLACE FUNCTION outbox.delivery_key(ordered boolean, ordering_key text) RETURNS bigint
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$ SELECT CASE WHEN ordered THEN outbox.key_hash(ordering_key) END $$;

CREATE OR REPLACE FUNCTION outbox.delivery_lane(ordered boolean, ordering_key text, seq bigint)
    RETURNS smallint LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$ SELECT CASE WHEN ordered THEN outbox.lane_of(outbox.key_hash(ordering_key), seq)
                      ELSE -1::smallint END $$;

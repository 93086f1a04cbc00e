-- Keys: what follows from an ordering key. Called by all that makes, moves or checks deliveries.

CREATE OR REPLACE FUNCTION outbox.key_hash(key text) RETURNS bigint
    LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
    AS $$ SELECT hashtextextended(key, 0) $$;

CREATE OR REPLACE FUNCTION outbox.slot_of(key text) RETURNS integer
    LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
    AS $$ SELECT (hashtextextended(key, 0) & 65535)::integer $$;
COMMENT ON FUNCTION outbox.slot_of IS
    'The lock that an ordering key takes. Bulk inserts that ORDER BY it cannot deadlock each other.';

-- 64 lanes: more processes than a database can feed, and few enough to look into each.
CREATE OR REPLACE FUNCTION outbox.lane_of(key_hash bigint, seq bigint) RETURNS smallint
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$ SELECT (coalesce(key_hash, seq) & 63)::smallint $$;

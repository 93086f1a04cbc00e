-- How much a claim takes; turn.sql makes it.

-- A claim takes at most this many bytes of payload and headers, or one event: so a relay's memory is
-- bounded.
CREATE OR REPLACE FUNCTION outbox.bytes_per_claim() RETURNS integer
    LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$ SELECT 8 * 1024 * 1024 $$;

-- The part of a claim's rows and bytes that retries and replays may take: the rest is for the line.
-- Otherwise one destination that accepts nothing would fill every claim with its retries, and leave
-- nothing for the others. A claim of one event cannot be divided.
CREATE OR REPLACE FUNCTION outbox.due_share(whole integer) RETURNS integer
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$ SELECT CASE WHEN whole > 1 THEN whole - greatest(1, whole / 4) ELSE whole END $$;

-- A claim alone, as relays of the previous version send it; theirs of this one call outbox.turn.
CREATE OR REPLACE FUNCTION outbox.claim(
    relay integer, name text, owner text, fence bigint, row_limit integer, lease interval, floor bigint,
    server timestamptz, suspects boolean, durable boolean, holder bigint DEFAULT NULL,
    lanes smallint[] DEFAULT NULL, lane_limit integer DEFAULT NULL
) RETURNS SETOF outbox.claimed LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY SELECT * FROM outbox.turn(relay, name, owner, fence, row_limit, lease, floor, server,
                                           suspects, durable, holder, lanes, lane_limit);
END $$;

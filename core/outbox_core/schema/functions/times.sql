-- Times that an event may have. Called by the rules of arrival and of the lifecycle.

-- A time that relays can represent, in every time zone. (Not STRICT: such a function is not inlined.)
CREATE OR REPLACE FUNCTION outbox.in_calendar(at timestamptz) RETURNS boolean
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$ SELECT at >= timestamptz '0001-01-02 00:00+00' AND at < timestamptz '9999-12-31 00:00+00' $$;

-- What an event may wait for: such a time, or (infinity) until a person decides.
CREATE OR REPLACE FUNCTION outbox.is_schedule(at timestamptz) RETURNS boolean
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$ SELECT at >= timestamptz '0001-01-02 00:00+00'
             AND (at < timestamptz '9999-12-31 00:00+00' OR at = timestamptz 'infinity') $$;

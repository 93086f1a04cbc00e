-- The tables. What never changes about an event is in outbox.event; what happens to it is in
-- outbox.delivery, one narrow row per (relay, event), so that an update never rewrites a payload.

CREATE TYPE outbox.state AS ENUM ('PENDING', 'CLAIMED', 'PUBLISHED', 'DEAD');

-- Why a delivery is not simply in line.
--   NONE     in line: claimed in seq order
--   TIME     waits for available_at (a retry, a schedule, a replay, a give-back)
--   SUSPECT  as TIME, and was in flight when a relay died: claimed in small groups, then alone
--   KEY      waits behind an earlier event of its key
--   DEAD     is dead and its relay's policy is that its key waits for it
CREATE TYPE outbox.hold AS ENUM ('NONE', 'TIME', 'SUSPECT', 'KEY', 'DEAD');

-- Drawn by the insert trigger, after the key's lock is held: so there is no column default.
CREATE SEQUENCE outbox.event_seq AS bigint;

CREATE TABLE outbox.event (
    seq             bigint      PRIMARY KEY,
    created_at      timestamptz NOT NULL,
    occurred_at     timestamptz,
    available_at    timestamptz,
    max_attempts    integer,
    event_id        uuid        NOT NULL DEFAULT gen_random_uuid(),
    causation_id    uuid,
    event_type      text        NOT NULL,
    ordering_key    text,
    partition_key   text,
    aggregate_type  text,
    aggregate_id    text,
    tenant_id       text,
    correlation_id  text,
    idempotency_key text,
    content_type    text,
    headers         jsonb,
    metadata        jsonb,
    payload         bytea       NOT NULL,
    CONSTRAINT event_id_is_unique UNIQUE (event_id)
);  -- what else must hold is checked by event_arrives(), for the fields that are set

COMMENT ON TABLE outbox.event IS
    'One row per event, immutable. INSERT here, or call outbox.emit(), inside the business transaction.';
COMMENT ON COLUMN outbox.event.seq IS 'Position; commit order within an ordering key. Set by the outbox.';
COMMENT ON COLUMN outbox.event.headers IS
    'A JSON object of strings, or an array of [name, value] pairs where order or repetition matters.';
COMMENT ON COLUMN outbox.event.available_at IS
    'Not to be published before; NULL = at once, infinity = until somebody decides.';
COMMENT ON COLUMN outbox.event.max_attempts IS 'Overrides the relay''s retry limit; NULL = the relay''s.';

-- Look-ups are partial, so that a producer pays only for the fields it uses.
CREATE UNIQUE INDEX event_idempotency ON outbox.event (coalesce(tenant_id, ''), idempotency_key)
    WHERE idempotency_key IS NOT NULL;
CREATE INDEX event_correlation ON outbox.event (correlation_id, seq) WHERE correlation_id IS NOT NULL;
CREATE INDEX event_causation ON outbox.event (causation_id) WHERE causation_id IS NOT NULL;
CREATE INDEX event_aggregate ON outbox.event (aggregate_type, aggregate_id, seq)
    WHERE aggregate_id IS NOT NULL;
CREATE INDEX event_tenant ON outbox.event (tenant_id, seq) WHERE tenant_id IS NOT NULL;
CREATE INDEX event_key ON outbox.event (ordering_key, seq) WHERE ordering_key IS NOT NULL;
CREATE INDEX event_time ON outbox.event USING brin (created_at) WITH (pages_per_range = 32);

-- Keyed inserts are serialised per slot (hash of the key), by a row lock: row locks live in the
-- row, so a transaction with a million keys needs no more shared memory than one with two.
CREATE TABLE outbox.slot (id integer PRIMARY KEY CHECK (id BETWEEN 0 AND 65535)) WITH (autovacuum_enabled = false);
INSERT INTO outbox.slot SELECT generate_series(0, 65535);

CREATE TABLE outbox.relay (
    id            integer     GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name          text        NOT NULL UNIQUE CHECK (name <> ''),
    event_types   text[]      NOT NULL DEFAULT '{*}',
    tenants       text[],
    ordering      text        NOT NULL CHECK (ordering IN ('None', 'Key')),
    notify        boolean     NOT NULL DEFAULT false,
    active        boolean     NOT NULL DEFAULT true,
    patterns      text[],     -- event_types as LIKE patterns; NULL = every type
    version       bigint      NOT NULL UNIQUE,  -- grows in commit order with each (re-)registration
    registered_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE outbox.delivery (
    seq                   bigint       NOT NULL,
    available_at          timestamptz  NOT NULL,
    key_hash              bigint,      -- of the ordering key; NULL where the relay does not order
    claimed_at            timestamptz,
    lease_until           timestamptz,
    claim_token           bigint,
    published_at          timestamptz,
    previous_published_at timestamptz,
    age_from              timestamptz, -- maxAge counts from here; NULL = from the event's created_at
    relay_id              integer      NOT NULL,
    attempts              integer      NOT NULL DEFAULT 0,
    attempts_base         integer      NOT NULL DEFAULT 0,  -- budget used = attempts - attempts_base
    state                 outbox.state NOT NULL DEFAULT 'PENDING',
    hold                  outbox.hold  NOT NULL DEFAULT 'NONE',
    lane                  smallint     NOT NULL DEFAULT -1,  -- -1 where the relay does not order
    crashes               smallint     NOT NULL DEFAULT 0,   -- leases that ran out in a row
    bytes                 integer      NOT NULL DEFAULT 0,   -- of payload and headers: a claim is bounded
    claimed_by            text,
    result                text,        -- the broker's answer, e.g. orders[3]@1042
    last_error            jsonb,       -- {"class", "code", "text", "at"}
    replay_id             text,        -- what brought it back last
    PRIMARY KEY (relay_id, seq),
    -- Few and short: an insert parses each of them anew.
    CONSTRAINT claim_fields_iff_claimed CHECK (
        num_nulls(claimed_at, claimed_by, claim_token, lease_until)
        = CASE state WHEN 'CLAIMED' THEN 0 ELSE 4 END),
    CONSTRAINT published_at_iff_published CHECK ((state = 'PUBLISHED') = (published_at IS NOT NULL))
) WITH (
    -- Every event is updated twice; the dead versions must not wait for 20 % of a huge table.
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_insert_scale_factor = 0.05,
    autovacuum_analyze_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 1
);

CREATE INDEX delivery_line ON outbox.delivery (relay_id, lane, seq)
    WHERE state = 'PENDING' AND hold = 'NONE';
CREATE INDEX delivery_due ON outbox.delivery (relay_id, hold, available_at, seq)
    WHERE state = 'PENDING' AND hold IN ('TIME', 'SUSPECT');
CREATE INDEX delivery_claimed ON outbox.delivery (relay_id, lease_until) WHERE state = 'CLAIMED';
CREATE INDEX delivery_dead ON outbox.delivery (relay_id, seq) WHERE state = 'DEAD';
CREATE INDEX delivery_held ON outbox.delivery (relay_id, key_hash, seq)
    WHERE hold <> 'NONE' AND key_hash IS NOT NULL;
CREATE INDEX delivery_parked ON outbox.delivery (relay_id, key_hash, seq) WHERE hold = 'KEY';
CREATE INDEX delivery_published ON outbox.delivery USING brin (published_at)
    WITH (pages_per_range = 32);

-- Events that no relay wanted when they were inserted. `version` is the newest registration that
-- the inserting transaction saw: whoever registered after it has not been asked yet.
CREATE TABLE outbox.unmatched (seq bigint PRIMARY KEY, version bigint NOT NULL);
CREATE INDEX unmatched_version ON outbox.unmatched (version, seq);

-- Ordered relays: who may claim from which lane. One holder row per relay process.
CREATE TABLE outbox.holder (
    token      bigint      PRIMARY KEY,  -- drawn by the process, at random: see store/tokens.py
    relay_id   integer     NOT NULL,
    owner      text        NOT NULL,
    expires_at timestamptz NOT NULL
) WITH (fillfactor = 50);

CREATE TABLE outbox.lane (
    relay_id integer  NOT NULL,
    lane     smallint NOT NULL CHECK (lane BETWEEN 0 AND 63),
    token    bigint,
    PRIMARY KEY (relay_id, lane)
) WITH (fillfactor = 50);

CREATE TABLE outbox.audit (
    id       bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    actor    text        NOT NULL,
    db_user  text        NOT NULL DEFAULT session_user,
    action   text        NOT NULL,
    relay    text        NOT NULL,
    event_id uuid        NOT NULL,
    seq      bigint      NOT NULL,
    reason   text        NOT NULL CHECK (btrim(reason) <> ''),
    before   jsonb       NOT NULL,
    after    jsonb       NOT NULL
);
CREATE INDEX audit_event ON outbox.audit (event_id, id);

-- The tables, types, indexes and views, and who may read and write them. What never changes about an
-- event is in outbox.event. What happens to it for a relay is in exactly one of three places:
--   outbox.delivery   a narrow row of its own: it waits, is dead, or needed more than one attempt
--   outbox.batch      claimed for the first time, together with others; in flight
--   outbox.published  published at its first attempt, together with others; for good
-- So almost every event is one row that is inserted and deleted again, and a member of two arrays.
-- outbox.deliveries shows all three as one.
--
-- No table depends on a function, so this file stands alone. The functions are in ../functions, the
-- triggers in ../triggers.sql; both are applied after the migrations.

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
);  -- all other rules are checked by event_arrives(), for the fields that are set

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
    registered_at timestamptz NOT NULL DEFAULT now(),
    retirement    bigint
);
COMMENT ON COLUMN outbox.relay.retirement IS
    'The entry of outbox.audit that says who retired it and why; NULL = it is not retired.';

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
    crashes               smallint     NOT NULL DEFAULT 0,   -- leases that expired in a row
    bytes                 integer      NOT NULL DEFAULT 0,   -- of payload and headers: a claim is bounded
    claimed_by            text,
    result                text,        -- the broker's answer, e.g. orders[3]@1042
    last_error            jsonb,       -- {"class", "code", "text", "at"}
    replay_id             text,        -- what brought it back last
    PRIMARY KEY (relay_id, seq),
    -- Few and short: an insert parses each of them again.
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
CREATE INDEX delivery_done ON outbox.delivery (relay_id, seq) WHERE state = 'PUBLISHED';
CREATE INDEX delivery_held ON outbox.delivery (relay_id, key_hash, seq)
    WHERE hold <> 'NONE' AND key_hash IS NOT NULL;
CREATE INDEX delivery_behind ON outbox.delivery (relay_id, key_hash, seq) WHERE hold = 'KEY';
CREATE INDEX delivery_published ON outbox.delivery USING brin (published_at)
    WITH (pages_per_range = 32);

-- What was claimed together, for the first time, and is in flight. Inserting a row here is the claim: a
-- trigger deletes the deliveries of `seqs`. A member that is taken out again, or all of them when the row
-- is deleted, becomes a delivery of its own, CLAIMED as before. See functions/batch.sql.
CREATE TABLE outbox.batch (
    token       bigint      PRIMARY KEY,  -- of the claim
    first_seq   bigint      NOT NULL,
    claimed_at  timestamptz NOT NULL,
    lease_until timestamptz NOT NULL,
    relay_id    integer     NOT NULL,
    claimed_by  text        NOT NULL,
    lanes       smallint[]  NOT NULL,     -- of its members; -1 where the relay does not order
    seqs        bigint[]    NOT NULL      -- ascending
) WITH (
    fillfactor = 50,  -- a renewal stays in its page
    -- A few rows at a time, each for milliseconds.
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_insert_threshold = -1, autovacuum_vacuum_cost_delay = 0
);
CREATE INDEX batch_relay ON outbox.batch (relay_id, first_seq);

-- What was published at its first attempt. Inserting a row here ends the batch of that token: a trigger
-- takes its members over and deletes it. A member that is taken out, by a replay, becomes a delivery of its
-- own, PUBLISHED as before. Small rows are merged, see functions/merge.sql: then the times of their members
-- differ.
CREATE TABLE outbox.published (
    token     bigint      PRIMARY KEY,
    first_seq bigint      NOT NULL,
    last_seq  bigint      NOT NULL,
    first_at  timestamptz NOT NULL,
    last_at   timestamptz NOT NULL,
    relay_id  integer     NOT NULL,
    size      integer     NOT NULL,
    seqs      bigint[]    NOT NULL,  -- ascending
    results   text[]      NOT NULL,  -- the broker's answers, e.g. orders[3]@1042
    times     timestamptz[]          -- NULL: all of them at first_at
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 1);
CREATE INDEX published_range ON outbox.published USING gist (int8range(first_seq, last_seq, '[]'));
CREATE INDEX published_seq ON outbox.published (relay_id, last_seq);
CREATE INDEX published_small ON outbox.published (relay_id, last_seq) WHERE size < 500;
CREATE INDEX published_at ON outbox.published USING brin (first_at, last_at) WITH (pages_per_range = 8);

DO $$
BEGIN
    ALTER TABLE outbox.batch ALTER COLUMN seqs SET COMPRESSION lz4;
    ALTER TABLE outbox.published ALTER COLUMN seqs SET COMPRESSION lz4,
        ALTER COLUMN results SET COMPRESSION lz4, ALTER COLUMN times SET COMPRESSION lz4;
EXCEPTION WHEN feature_not_supported THEN NULL;  -- a server that was built without it: slower, no more
END $$;

-- Every delivery, wherever it is. To read a whole relay; for one event there is outbox.delivery_of().
CREATE VIEW outbox.deliveries AS
SELECT d.relay_id, d.seq, d.state, d.hold, d.attempts, d.attempts_base, d.crashes, d.available_at,
       d.claimed_at, d.claimed_by, d.claim_token, d.lease_until, d.published_at,
       d.previous_published_at, d.last_error, d.result, d.replay_id, d.lane
  FROM outbox.delivery d
UNION ALL
SELECT b.relay_id, m.seq, 'CLAIMED', 'NONE', 1, 0, 0::smallint, NULL, b.claimed_at, b.claimed_by, b.token,
       b.lease_until, NULL, NULL, NULL, NULL, NULL, NULL
  FROM outbox.batch b, unnest(b.seqs) AS m (seq)
UNION ALL
SELECT p.relay_id, m.seq, 'PUBLISHED', 'NONE', 1, 0, 0::smallint, NULL, NULL, NULL, NULL, NULL,
       coalesce(m.at, p.first_at), NULL, NULL, m.result, NULL, NULL
  FROM outbox.published p, unnest(p.seqs, p.results, p.times) AS m (seq, result, at);
COMMENT ON VIEW outbox.deliveries IS
    'What happens to each event for each relay. available_at is NULL where the event''s own is valid.';

-- A door, always empty: what is inserted here comes out of outbox.published and waits to be published
-- again, by a trigger. See functions/replay_published.sql.
CREATE VIEW outbox.requeued AS
SELECT NULL::integer AS relay_id, NULL::bigint[] AS seqs, NULL::text AS replay_id,
       NULL::boolean AS reset_attempts, NULL::timestamptz AS due
 WHERE false;
COMMENT ON VIEW outbox.requeued IS
    'INSERT lets a replay take published events back; RETURNING seqs: those that were there.';

-- Events that no relay wanted when they were inserted. `version` is the newest registration that
-- the inserting transaction saw: relays that registered after it have not been asked yet.
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
    event_id uuid,
    seq      bigint,
    reason   text        NOT NULL CHECK (btrim(reason) <> ''),
    before   jsonb       NOT NULL,
    after    jsonb       NOT NULL,
    -- What is done to a relay, or to many events at once, is about no single event.
    CONSTRAINT audit_names_what_it_is_about CHECK (num_nulls(event_id, seq) = CASE WHEN action IN (
        'retire', 'drop', 'replay-begin', 'replay-stop', 'replay-end') THEN 2 ELSE 0 END)
);
CREATE INDEX audit_event ON outbox.audit (event_id, id);

-- What a claim returns.
CREATE TYPE outbox.claimed AS (
    seq bigint, token bigint, now timestamptz, attempts integer, attempts_base integer,
    crashes smallint, lane smallint, event_id text, event_type text, payload bytea,
    content_type text, headers text, traceparent text, partition_key text, ordering_key text,
    tenant_id text, correlation_id text, causation_id text, idempotency_key text,
    aggregate_type text, aggregate_id text, occurred_at timestamptz, created_at timestamptz,
    max_attempts integer,
    line_from bigint,  -- the smallest seq that was in line; for the caller's watermark
    age_from timestamptz,
    was_published boolean  -- before it was replayed
);

-- Bulk replays: what was asked for, the plan, the ledger.
--
-- The plan is exact: it lists the events, in chunks, as one snapshot had them. The tasks of a
-- replay take chunk after chunk; one chunk is one transaction, which moves its deliveries and
-- writes its row of the ledger, or does nothing. So a lost or repeated task, a twin of it, or a
-- second driver changes nothing: the ledger has each chunk once.
--
-- Chunks are spread over bands, 64 at most, and those of a band are done strictly one after the other.
-- For a relay that orders, a band has whole lanes: so a key's events come back in the order of their seq,
-- however many take part.

CREATE TABLE outbox.replay (
    id             text             PRIMARY KEY CHECK (id <> ''),
    relay_id       integer          NOT NULL,
    action         text             NOT NULL CHECK (action IN ('Requeue', 'Backfill')),
    states         outbox.state[]   NOT NULL,  -- those that are brought back; none in a Backfill
    reset_attempts boolean          NOT NULL,
    rate           integer          NOT NULL CHECK (rate > 0),
    chunk_rows     integer          NOT NULL CHECK (chunk_rows > 0),
    request        jsonb            NOT NULL,  -- as it was asked for
    reason         text             NOT NULL CHECK (btrim(reason) <> ''),
    requested_by   text,
    created_at     timestamptz      NOT NULL DEFAULT now(),
    -- the plan; NULL until it is made
    by_key         boolean,                    -- a band has whole lanes
    upper_seq      bigint,                     -- the last of the selected events
    matched        bigint,
    chunks         integer,
    planned_at     timestamptz,
    -- how far it is: what the ledger adds up to, so that nobody has to add it up every second
    replayed       bigint           NOT NULL DEFAULT 0,
    skipped        jsonb            NOT NULL DEFAULT '{}',
    chunks_done    integer          NOT NULL DEFAULT 0,
    stopped_at     timestamptz,
    finished_at    timestamptz,
    -- how fast: a chunk may be taken from next_at on
    pace           double precision NOT NULL CHECK (pace > 0),  -- events per second
    next_at        timestamptz      NOT NULL DEFAULT now(),
    CONSTRAINT plan_is_whole CHECK (
        num_nulls(by_key, matched, chunks, planned_at) IN (0, 4)
        AND (finished_at IS NULL OR chunks_done = chunks))
) WITH (fillfactor = 50);
COMMENT ON TABLE outbox.replay IS 'Bulk replays: what was asked for, how far each is, how fast it may go.';

CREATE TABLE outbox.replay_chunk (
    replay_id text     NOT NULL,
    band      smallint NOT NULL,
    n         integer  NOT NULL,  -- 0, 1, 2 .. within the band
    size      integer  NOT NULL,
    first_seq bigint   NOT NULL,
    seqs      bigint[] NOT NULL,  -- ascending
    PRIMARY KEY (replay_id, band, n)
);
ALTER TABLE outbox.replay_chunk ALTER COLUMN seqs SET STORAGE EXTERNAL;
COMMENT ON TABLE outbox.replay_chunk IS 'The plan of each bulk replay: which events, in which order.';

CREATE TABLE outbox.replay_ledger (
    replay_id text        NOT NULL,
    band      smallint    NOT NULL,
    n         integer     NOT NULL,
    replayed  integer     NOT NULL,
    skipped   jsonb       NOT NULL,  -- how many, by what they were instead when their turn came
    at        timestamptz NOT NULL,
    worker    text        NOT NULL,
    PRIMARY KEY (replay_id, band, n)
);
COMMENT ON TABLE outbox.replay_ledger IS 'What bulk replays did: one row per chunk, in its transaction.';

-- The whole event as the specification describes it. An event that nobody has, and that nobody is to
-- have, waits for nothing: it has no state.
CREATE VIEW outbox.events AS
SELECT e.seq, e.event_id, e.event_type, e.payload, e.content_type, e.headers, e.metadata,
       e.partition_key, e.ordering_key, e.idempotency_key, e.tenant_id, e.correlation_id,
       e.causation_id, e.aggregate_type, e.aggregate_id, e.occurred_at, e.created_at,
       e.max_attempts, d.relay,
       CASE WHEN d.state IS NOT NULL THEN d.state
            WHEN EXISTS (SELECT 1 FROM outbox.unmatched u WHERE u.seq = e.seq)
            THEN 'PENDING'::outbox.state END AS state,
       coalesce(d.attempts, 0) AS attempts,
       coalesce(d.attempts - d.attempts_base, 0) AS attempts_in_budget,
       coalesce(d.available_at, e.available_at, CASE WHEN d.state IS NOT NULL THEN e.created_at END)
           AS available_at, d.hold, d.claimed_at,
       d.claimed_by, d.lease_until, d.published_at, d.previous_published_at, d.last_error,
       d.result, d.replay_id, d.crashes
  FROM outbox.event e
  -- as outbox.deliveries, but each event is looked up by an index
  LEFT JOIN LATERAL (
       SELECT r.name AS relay, d.state, d.hold, d.attempts, d.attempts_base, d.crashes, d.available_at,
              d.claimed_at, d.claimed_by, d.lease_until, d.published_at, d.previous_published_at,
              d.last_error, d.result, d.replay_id
         FROM outbox.relay r JOIN outbox.delivery d ON d.relay_id = r.id AND d.seq = e.seq
       UNION ALL
       SELECT r.name, 'CLAIMED', 'NONE', 1, 0, 0, NULL, b.claimed_at, b.claimed_by, b.lease_until, NULL,
              NULL, NULL, NULL, NULL
         FROM outbox.relay r JOIN outbox.batch b ON b.relay_id = r.id
        WHERE b.first_seq <= e.seq AND e.seq = ANY (b.seqs)
       UNION ALL
       SELECT r.name, 'PUBLISHED', 'NONE', 1, 0, 0, NULL, NULL, NULL, NULL,
              coalesce(p.times[m.n], p.first_at), NULL, NULL, p.results[m.n], NULL
         FROM outbox.published p JOIN outbox.relay r ON r.id = p.relay_id,
              array_position(p.seqs, e.seq) AS m (n)
        WHERE int8range(p.first_seq, p.last_seq, '[]') @> e.seq AND m.n IS NOT NULL) d ON true;
COMMENT ON VIEW outbox.events IS
    'Every event with its state per relay; relay is NULL while no relay wants the event, and state too where none ever will get it: a record, or what waited for a relay that was retired.';

-- Who may do what -----------------------------------------------------------------------------
-- With tables; who may call which function is in ../grants.sql. Roles belong to the whole server, so
-- they may be there already.

DO $$
DECLARE
    wanted text;
BEGIN
    FOREACH wanted IN ARRAY ARRAY['outbox_producer', 'outbox_relay', 'outbox_reader'] LOOP
        BEGIN
            EXECUTE format('CREATE ROLE %I NOLOGIN', wanted);
        EXCEPTION
            WHEN duplicate_object OR unique_violation THEN NULL;
            WHEN insufficient_privilege THEN
                IF NOT EXISTS (SELECT 1 FROM pg_roles WHERE rolname = wanted) THEN
                    RAISE EXCEPTION 'outbox: role % is missing and % may not create it',
                        wanted, current_user USING ERRCODE = 'insufficient_privilege',
                        HINT = 'As an administrator: CREATE ROLE outbox_producer; '
                               'CREATE ROLE outbox_relay; CREATE ROLE outbox_reader;';
                END IF;
        END;
    END LOOP;
END $$;

GRANT USAGE ON SCHEMA outbox TO outbox_producer, outbox_relay, outbox_reader;

-- Producers insert events. Not seq and created_at: those are the outbox's to set.
GRANT INSERT (event_id, event_type, payload, content_type, headers, metadata, partition_key,
              ordering_key, idempotency_key, tenant_id, correlation_id, causation_id,
              aggregate_type, aggregate_id, occurred_at, available_at, max_attempts)
    ON outbox.event TO outbox_producer;

GRANT SELECT ON outbox.event, outbox.delivery, outbox.batch, outbox.published, outbox.deliveries,
    outbox.relay, outbox.unmatched, outbox.holder,
    outbox.lane, outbox.audit, outbox.events, outbox.replay, outbox.replay_chunk,
    outbox.replay_ledger, outbox.schema_version, outbox.schema_code TO outbox_reader, outbox_relay;
GRANT INSERT, UPDATE ON outbox.relay TO outbox_relay;
GRANT UPDATE ON outbox.delivery TO outbox_relay;  -- only functions with their owner's rights insert
-- To insert is to claim and to publish, to delete is to give back: their triggers do the rest.
GRANT INSERT, UPDATE, DELETE ON outbox.batch, outbox.published TO outbox_relay;
GRANT SELECT, INSERT ON outbox.requeued TO outbox_relay;
GRANT UPDATE, DELETE ON outbox.unmatched TO outbox_relay;
GRANT INSERT, UPDATE, DELETE ON outbox.holder, outbox.lane TO outbox_relay;
GRANT INSERT ON outbox.audit TO outbox_relay;
GRANT INSERT, UPDATE ON outbox.replay TO outbox_relay;
GRANT INSERT, UPDATE ON outbox.replay_chunk TO outbox_relay;  -- to lock its rows: to change them is refused
GRANT INSERT ON outbox.replay_ledger TO outbox_relay;
GRANT SELECT ON SEQUENCE outbox.event_seq TO outbox_relay;

-- emit: the call by which producers add an event to their transaction. The triggers of outbox.event do the
-- rest, also for a plain INSERT.

-- With its owner's rights, because producers may not read events. emit() itself runs with its caller's:
-- INSERT is granted, and changing rights and search_path for every call would cost time.
CREATE OR REPLACE FUNCTION outbox.first_twin(tenant_id text, idempotency_key text) RETURNS uuid
    LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT e.event_id FROM outbox.event e
     WHERE coalesce(e.tenant_id, '') = coalesce(first_twin.tenant_id, '')
       AND e.idempotency_key = first_twin.idempotency_key $$;

CREATE OR REPLACE FUNCTION outbox.emit(
    event_type text, payload bytea, ordering_key text DEFAULT NULL, headers jsonb DEFAULT NULL,
    idempotency_key text DEFAULT NULL, event_id uuid DEFAULT NULL, partition_key text DEFAULT NULL,
    aggregate_type text DEFAULT NULL, aggregate_id text DEFAULT NULL, tenant_id text DEFAULT NULL,
    correlation_id text DEFAULT NULL, causation_id uuid DEFAULT NULL, metadata jsonb DEFAULT NULL,
    content_type text DEFAULT NULL, occurred_at timestamptz DEFAULT NULL,
    available_at timestamptz DEFAULT NULL, max_attempts integer DEFAULT NULL
) RETURNS uuid LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    id uuid := coalesce(emit.event_id, gen_random_uuid());
BEGIN
    INSERT INTO outbox.event (
        event_id, event_type, payload, ordering_key, headers, idempotency_key, partition_key,
        aggregate_type, aggregate_id, tenant_id, correlation_id, causation_id, metadata,
        content_type, occurred_at, available_at, max_attempts)
    VALUES (
        id, emit.event_type, emit.payload, emit.ordering_key, emit.headers, emit.idempotency_key,
        emit.partition_key, emit.aggregate_type, emit.aggregate_id, emit.tenant_id,
        emit.correlation_id, emit.causation_id, emit.metadata, emit.content_type,
        emit.occurred_at, emit.available_at, emit.max_attempts);
    IF NOT FOUND THEN  -- a duplicate: return the first one's id
        id := outbox.first_twin(emit.tenant_id, emit.idempotency_key);
    END IF;
    RETURN id;
END $$;
COMMENT ON FUNCTION outbox.emit(text, bytea, text, jsonb, text, uuid, text, text, text, text, text,
    uuid, jsonb, text, timestamptz, timestamptz, integer) IS
    'Add an event to this transaction; returns its id, or the first one''s for a known idempotency key.';

CREATE OR REPLACE FUNCTION outbox.emit(
    event_type text, payload jsonb, ordering_key text DEFAULT NULL, headers jsonb DEFAULT NULL,
    idempotency_key text DEFAULT NULL, event_id uuid DEFAULT NULL, partition_key text DEFAULT NULL,
    aggregate_type text DEFAULT NULL, aggregate_id text DEFAULT NULL, tenant_id text DEFAULT NULL,
    correlation_id text DEFAULT NULL, causation_id uuid DEFAULT NULL, metadata jsonb DEFAULT NULL,
    content_type text DEFAULT 'application/json', occurred_at timestamptz DEFAULT NULL,
    available_at timestamptz DEFAULT NULL, max_attempts integer DEFAULT NULL
) RETURNS uuid LANGUAGE sql AS $$
    SELECT outbox.emit(
        event_type, convert_to(payload::text, 'UTF8'), ordering_key, headers, idempotency_key,
        event_id, partition_key, aggregate_type, aggregate_id, tenant_id, correlation_id,
        causation_id, metadata, content_type, occurred_at, available_at, max_attempts) $$;

-- A quoted literal without a type is text: without this overload such a call would be ambiguous.
CREATE OR REPLACE FUNCTION outbox.emit(
    event_type text, payload text, ordering_key text DEFAULT NULL, headers jsonb DEFAULT NULL,
    idempotency_key text DEFAULT NULL, event_id uuid DEFAULT NULL, partition_key text DEFAULT NULL,
    aggregate_type text DEFAULT NULL, aggregate_id text DEFAULT NULL, tenant_id text DEFAULT NULL,
    correlation_id text DEFAULT NULL, causation_id uuid DEFAULT NULL, metadata jsonb DEFAULT NULL,
    content_type text DEFAULT NULL, occurred_at timestamptz DEFAULT NULL,
    available_at timestamptz DEFAULT NULL, max_attempts integer DEFAULT NULL
) RETURNS uuid LANGUAGE sql AS $$
    SELECT outbox.emit(
        event_type, convert_to(payload, 'UTF8'), ordering_key, headers, idempotency_key,
        event_id, partition_key, aggregate_type, aggregate_id, tenant_id, correlation_id,
        causation_id, metadata, content_type, occurred_at, available_at, max_attempts) $$;

CREATE OR REPLACE FUNCTION outbox.derive_idempotency_key(
    aggregate_type text, aggregate_id text, event_type text, payload bytea
) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT concat_ws(':', aggregate_type, aggregate_id, event_type,
                     left(encode(sha256(payload), 'hex'), 32)) $$;
COMMENT ON FUNCTION outbox.derive_idempotency_key IS
    'A deterministic key: the same fact about the same aggregate gives the same key.';

-- Which rule applies to which table. The database itself enforces the rules: every trigger is ENABLE
-- ALWAYS, so that neither a superuser's UPDATE nor session_replication_role gets around them.
--
-- Separate from the functions, because CREATE OR REPLACE TRIGGER waits until nobody writes to the table,
-- and producers queue up behind it. It is applied only when this file has changed. The tables are in the
-- order in which a producer's INSERT locks them, so that the two cannot deadlock.

-- event: arrives, is given to the relays, and never changes ------------------------------------

CREATE OR REPLACE TRIGGER event_arrives BEFORE INSERT ON outbox.event
    FOR EACH ROW EXECUTE FUNCTION outbox.event_arrives();
CREATE OR REPLACE TRIGGER event_fans_out AFTER INSERT ON outbox.event
    REFERENCING NEW TABLE AS arrived
    FOR EACH STATEMENT EXECUTE FUNCTION outbox.event_fans_out();
CREATE OR REPLACE TRIGGER event_is_immutable BEFORE UPDATE OR DELETE ON outbox.event
    FOR EACH ROW EXECUTE FUNCTION outbox.event_is_immutable();
CREATE OR REPLACE TRIGGER event_is_not_truncated BEFORE TRUNCATE ON outbox.event
    FOR EACH STATEMENT EXECUTE FUNCTION outbox.event_is_immutable();

-- slot: all rows always exist. Inserting a missing one is allowed, and the table's CHECK bounds it.

CREATE OR REPLACE TRIGGER slot_is_kept BEFORE UPDATE OR DELETE OR TRUNCATE ON outbox.slot
    FOR EACH STATEMENT EXECUTE FUNCTION outbox.slot_is_kept();

-- delivery: moves along the lifecycle only, and is kept -----------------------------------------

CREATE OR REPLACE TRIGGER delivery_starts_pending BEFORE INSERT ON outbox.delivery
    FOR EACH ROW WHEN (NEW.state <> 'PENDING' OR NEW.attempts <> 0 OR NEW.hold = 'DEAD')
    EXECUTE FUNCTION outbox.delivery_starts_pending();
-- A condition, which is compiled and costs next to nothing per row, lets the two usual moves pass; the
-- function checks all others. The condition is short, and columns that are rarely written have a trigger
-- of their own, because every UPDATE statement parses it again.
CREATE OR REPLACE TRIGGER delivery_keeps_the_rules
    BEFORE UPDATE OF state, hold, attempts, available_at, claimed_at, published_at
    ON outbox.delivery FOR EACH ROW
    WHEN (NOT (NEW.hold = 'NONE' AND CASE OLD.state
        WHEN 'PENDING' THEN NEW.state = 'CLAIMED' AND NEW.attempts = OLD.attempts + 1
                            AND NEW.available_at <= now() AND isfinite(NEW.available_at)
        WHEN 'CLAIMED' THEN NEW.state = 'PUBLISHED' AND NEW.attempts = OLD.attempts
                            AND NEW.available_at = OLD.available_at
        ELSE false END))
    EXECUTE FUNCTION outbox.delivery_keeps_the_rules();
CREATE OR REPLACE TRIGGER delivery_keeps_its_past
    BEFORE UPDATE OF seq, relay_id, attempts_base, previous_published_at, age_from
    ON outbox.delivery FOR EACH ROW EXECUTE FUNCTION outbox.delivery_keeps_the_rules();
CREATE OR REPLACE TRIGGER delivery_keeps_its_lane BEFORE UPDATE OF lane, key_hash ON outbox.delivery
    FOR EACH ROW
    WHEN ((NEW.lane <> OLD.lane OR NEW.key_hash IS DISTINCT FROM OLD.key_hash)
          AND NOT (NEW.lane = -1 AND NEW.key_hash IS NULL AND NEW.hold <> 'KEY'))
    EXECUTE FUNCTION outbox.delivery_keeps_its_lane();
CREATE OR REPLACE TRIGGER delivery_is_kept AFTER DELETE ON outbox.delivery
    REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION outbox.delivery_is_kept();
CREATE OR REPLACE TRIGGER delivery_is_not_truncated BEFORE TRUNCATE ON outbox.delivery
    FOR EACH STATEMENT EXECUTE FUNCTION outbox.batch_is_kept();

-- batch, published: a delivery is in one place; what leaves one arrives in another ---------------

CREATE OR REPLACE TRIGGER batch_begins BEFORE INSERT ON outbox.batch
    FOR EACH ROW EXECUTE FUNCTION outbox.batch_begins();
CREATE OR REPLACE TRIGGER batch_takes_deliveries AFTER INSERT ON outbox.batch
    FOR EACH ROW EXECUTE FUNCTION outbox.batch_takes_deliveries();
CREATE OR REPLACE TRIGGER batch_changes
    BEFORE UPDATE OF token, first_seq, claimed_at, relay_id, claimed_by, lanes, seqs
    ON outbox.batch FOR EACH ROW EXECUTE FUNCTION outbox.batch_changes();
CREATE OR REPLACE TRIGGER batch_gives_deliveries AFTER UPDATE OF seqs OR DELETE ON outbox.batch
    FOR EACH ROW EXECUTE FUNCTION outbox.batch_gives_deliveries();
CREATE OR REPLACE TRIGGER batch_is_not_truncated BEFORE TRUNCATE ON outbox.batch
    FOR EACH STATEMENT EXECUTE FUNCTION outbox.batch_is_kept();
CREATE OR REPLACE TRIGGER published_begins BEFORE INSERT ON outbox.published
    FOR EACH ROW EXECUTE FUNCTION outbox.published_begins();
CREATE OR REPLACE TRIGGER published_takes_batch AFTER INSERT ON outbox.published
    FOR EACH ROW EXECUTE FUNCTION outbox.published_takes_batch();
CREATE OR REPLACE TRIGGER published_changes BEFORE UPDATE ON outbox.published
    FOR EACH ROW EXECUTE FUNCTION outbox.published_changes();
CREATE OR REPLACE TRIGGER published_gives_deliveries AFTER UPDATE OR DELETE ON outbox.published
    FOR EACH ROW EXECUTE FUNCTION outbox.published_gives_deliveries();
CREATE OR REPLACE TRIGGER published_is_not_truncated BEFORE TRUNCATE ON outbox.published
    FOR EACH STATEMENT EXECUTE FUNCTION outbox.batch_is_kept();
-- A view's trigger cannot be ENABLE ALWAYS: where it does not fire, nothing can be inserted into the view.
CREATE OR REPLACE TRIGGER published_comes_back INSTEAD OF INSERT ON outbox.requeued
    FOR EACH ROW EXECUTE FUNCTION outbox.published_comes_back();

-- unmatched: kept until a relay has the event ---------------------------------------------------

CREATE OR REPLACE TRIGGER unmatched_is_kept BEFORE DELETE ON outbox.unmatched
    FOR EACH ROW EXECUTE FUNCTION outbox.unmatched_is_kept();
CREATE OR REPLACE TRIGGER unmatched_keeps_its_event BEFORE UPDATE ON outbox.unmatched
    FOR EACH ROW WHEN (NEW.seq <> OLD.seq OR NEW.version < OLD.version)
    EXECUTE FUNCTION outbox.unmatched_is_kept();
CREATE OR REPLACE TRIGGER unmatched_is_not_truncated BEFORE TRUNCATE ON outbox.unmatched
    FOR EACH STATEMENT EXECUTE FUNCTION outbox.unmatched_is_kept();

-- relay, lane: what a relay registered, and where its keys wait ---------------------------------

CREATE OR REPLACE TRIGGER relay_means_its_types
    BEFORE INSERT OR UPDATE OF event_types, patterns ON outbox.relay
    FOR EACH ROW EXECUTE FUNCTION outbox.relay_means_its_types();
CREATE OR REPLACE TRIGGER relay_has_its_lanes AFTER INSERT OR UPDATE OF ordering ON outbox.relay
    FOR EACH ROW WHEN (NEW.ordering = 'Key') EXECUTE FUNCTION outbox.relay_has_its_lanes();
CREATE OR REPLACE TRIGGER relay_is_kept
    BEFORE UPDATE OF id, name, active, retirement OR DELETE ON outbox.relay
    FOR EACH ROW EXECUTE FUNCTION outbox.relay_is_kept();
CREATE OR REPLACE TRIGGER relay_is_not_truncated BEFORE TRUNCATE ON outbox.relay
    FOR EACH STATEMENT EXECUTE FUNCTION outbox.relay_is_kept();
CREATE OR REPLACE TRIGGER lane_is_kept BEFORE UPDATE OF relay_id, lane OR DELETE ON outbox.lane
    FOR EACH ROW EXECUTE FUNCTION outbox.lane_is_kept();
CREATE OR REPLACE TRIGGER lane_is_not_truncated BEFORE TRUNCATE ON outbox.lane
    FOR EACH STATEMENT EXECUTE FUNCTION outbox.lane_is_kept();

-- replay, its plan and its ledger: what was requested and what was done ---------------------------

CREATE OR REPLACE TRIGGER replay_is_kept BEFORE DELETE OR TRUNCATE ON outbox.replay
    FOR EACH STATEMENT EXECUTE FUNCTION outbox.replay_is_kept();
CREATE OR REPLACE TRIGGER replay_keeps_its_request
    BEFORE UPDATE OF id, relay_id, action, states, reset_attempts, rate, chunk_rows, request, reason,
        requested_by, created_at
    ON outbox.replay FOR EACH STATEMENT EXECUTE FUNCTION outbox.replay_is_kept();
CREATE OR REPLACE TRIGGER replay_is_planned_once
    BEFORE UPDATE OF by_key, upper_seq, matched, chunks, planned_at
    ON outbox.replay FOR EACH ROW WHEN (OLD.planned_at IS NOT NULL)
    EXECUTE FUNCTION outbox.replay_goes_on();
CREATE OR REPLACE TRIGGER replay_ends_once BEFORE UPDATE OF finished_at, stopped_at ON outbox.replay
    FOR EACH ROW WHEN (OLD.finished_at IS NOT NULL)
    EXECUTE FUNCTION outbox.replay_goes_on();
CREATE OR REPLACE TRIGGER replay_chunk_is_kept BEFORE UPDATE OR TRUNCATE ON outbox.replay_chunk
    FOR EACH STATEMENT EXECUTE FUNCTION outbox.replay_is_kept();
CREATE OR REPLACE TRIGGER replay_needs_its_plan BEFORE DELETE ON outbox.replay_chunk
    FOR EACH ROW EXECUTE FUNCTION outbox.replay_needs_its_plan();
CREATE OR REPLACE TRIGGER replay_ledger_is_kept
    BEFORE UPDATE OR DELETE OR TRUNCATE ON outbox.replay_ledger
    FOR EACH STATEMENT EXECUTE FUNCTION outbox.replay_is_kept();

-- audit: it only grows --------------------------------------------------------------------------

CREATE OR REPLACE TRIGGER audit_only_grows BEFORE UPDATE OR DELETE OR TRUNCATE ON outbox.audit
    FOR EACH STATEMENT EXECUTE FUNCTION outbox.audit_only_grows();

DO $$
DECLARE
    ours record;
BEGIN
    FOR ours IN SELECT t.tgrelid::regclass AS on_table, t.tgname AS name
                  FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid
                 WHERE p.pronamespace = 'outbox'::regnamespace
                   AND t.tgrelid <> 'outbox.requeued'::regclass LOOP
        EXECUTE format('ALTER TABLE %s ENABLE ALWAYS TRIGGER %I', ours.on_table, ours.name);
    END LOOP;
END $$;

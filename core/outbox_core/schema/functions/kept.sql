-- What is kept: rows that nobody may change or delete, because something would be lost. Called by triggers;
-- the rules of replays are in replay_rules.sql.

CREATE OR REPLACE FUNCTION outbox.event_is_immutable() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'outbox: events are immutable: % of outbox.event is not allowed', TG_OP
        USING ERRCODE = 'restrict_violation',
              HINT = 'A correction is a new event with causation_id = the id of the old one.';
END $$;

-- Deliveries, also those that were claimed or published together, are never emptied as a whole.
CREATE OR REPLACE FUNCTION outbox.batch_is_kept() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'outbox: % of outbox.% is not allowed: its events would be lost to the relay',
        TG_OP, TG_TABLE_NAME USING ERRCODE = 'restrict_violation';
END $$;

CREATE OR REPLACE FUNCTION outbox.unmatched_is_kept() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' AND EXISTS (
        SELECT 1 FROM outbox.relay r, outbox.delivery_of(r.id, OLD.seq))
    THEN
        RETURN OLD;
    END IF;
    RAISE EXCEPTION 'outbox: % of outbox.unmatched is not allowed: no relay would ever get the event',
        TG_OP USING ERRCODE = 'restrict_violation',
        HINT = 'It is deleted when a relay that subscribes to the event has registered.';
END $$;

CREATE OR REPLACE FUNCTION outbox.slot_is_kept() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'outbox: % of outbox.slot is not allowed: producers of a key wait for each other there',
        TG_OP USING ERRCODE = 'restrict_violation';
END $$;

CREATE OR REPLACE FUNCTION outbox.audit_only_grows() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'outbox: % of outbox.audit is not allowed: it only grows', TG_OP
        USING ERRCODE = 'restrict_violation';
END $$;

CREATE OR REPLACE FUNCTION outbox.relay_is_kept() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    rule text;
BEGIN
    IF TG_OP <> 'UPDATE' THEN
        rule := format('%s of outbox.relay is not allowed: its deliveries refer to it', TG_OP);
    ELSIF NEW.id <> OLD.id THEN
        rule := 'a relay keeps its id';
    ELSIF OLD.retirement IS NOT NULL THEN
        rule := format('relay %s is retired permanently', OLD.name);
    ELSIF NEW.retirement IS NOT NULL AND (NEW.active OR NOT EXISTS (
              SELECT 1 FROM outbox.audit a
               WHERE a.id = NEW.retirement AND a.action = 'retire' AND a.relay = OLD.name
                 AND (a.after->>'relay_id')::integer = OLD.id)) THEN
        rule := 'a retired relay has an entry in the audit, and is not active';
    ELSE
        RETURN NEW;
    END IF;
    RAISE EXCEPTION 'outbox: %', rule USING ERRCODE = 'restrict_violation',
        HINT = 'To end a relay that is no longer needed: outbox-relay retire --relay NAME --reason ...';
END $$;

-- Without its lane a key would never be claimed again. Processes may change the holder of a lane.
CREATE OR REPLACE FUNCTION outbox.lane_is_kept() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' AND EXISTS (
        SELECT 1 FROM outbox.relay WHERE id = OLD.relay_id AND retirement IS NOT NULL)
    THEN
        RETURN OLD;
    END IF;
    RAISE EXCEPTION 'outbox: % of outbox.lane is not allowed: its keys would not be published any more',
        TG_OP USING ERRCODE = 'restrict_violation', HINT = 'Lanes are deleted when their relay is retired.';
END $$;

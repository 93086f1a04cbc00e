-- What is kept: rows that nobody may change or delete, because something would be lost. By triggers; the
-- rules of replays are in replay_rules.sql.

CREATE OR REPLACE FUNCTION outbox.event_is_immutable() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'outbox: events are immutable: % of outbox.event is not allowed', TG_OP
        USING ERRCODE = 'restrict_violation',
              HINT = 'A correction is a new event with causation_id = the id of the old one.';
END $$;

-- Only what waits, and only for a relay that is retired: what was published or died stays known.
CREATE OR REPLACE FUNCTION outbox.delivery_is_kept() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' AND OLD.state = 'PENDING' AND EXISTS (
        SELECT 1 FROM outbox.relay WHERE id = OLD.relay_id AND retirement IS NOT NULL)
    THEN
        RETURN OLD;
    END IF;
    RAISE EXCEPTION 'outbox: % of outbox.delivery is not allowed: its event would be lost to the relay',
        TG_OP USING ERRCODE = 'restrict_violation',
        HINT = 'An event that must not go out is declared dead: outbox-relay declare-dead EVENT --reason ...';
END $$;

CREATE OR REPLACE FUNCTION outbox.unmatched_is_kept() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' AND EXISTS (
        SELECT 1 FROM outbox.relay r JOIN outbox.delivery d ON d.relay_id = r.id AND d.seq = OLD.seq)
    THEN
        RETURN OLD;
    END IF;
    RAISE EXCEPTION 'outbox: % of outbox.unmatched is not allowed: no relay would ever get the event',
        TG_OP USING ERRCODE = 'restrict_violation',
        HINT = 'It goes when a relay that wants the event has registered.';
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
        rule := format('%s of outbox.relay is not allowed: nobody would know whose its deliveries are',
                       TG_OP);
    ELSIF NEW.id <> OLD.id THEN
        rule := 'a relay keeps its id';
    ELSIF OLD.retirement IS NOT NULL THEN
        rule := format('relay %s is retired, for good', OLD.name);
    ELSIF NEW.retirement IS NOT NULL AND (NEW.active OR NOT EXISTS (
              SELECT 1 FROM outbox.audit a
               WHERE a.id = NEW.retirement AND a.action = 'retire' AND a.relay = OLD.name
                 AND (a.after->>'relay_id')::integer = OLD.id)) THEN
        rule := 'a relay is retired with an entry in the audit, and is not active any more';
    ELSE
        RETURN NEW;
    END IF;
    RAISE EXCEPTION 'outbox: %', rule USING ERRCODE = 'restrict_violation',
        HINT = 'A relay that is not wanted any more is retired: outbox-relay retire --relay NAME --reason ...';
END $$;

-- A key whose lane is gone would never be claimed again. Who holds a lane is the processes' affair.
CREATE OR REPLACE FUNCTION outbox.lane_is_kept() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' AND EXISTS (
        SELECT 1 FROM outbox.relay WHERE id = OLD.relay_id AND retirement IS NOT NULL)
    THEN
        RETURN OLD;
    END IF;
    RAISE EXCEPTION 'outbox: % of outbox.lane is not allowed: keys would stand still',
        TG_OP USING ERRCODE = 'restrict_violation', HINT = 'Lanes go when their relay is retired.';
END $$;

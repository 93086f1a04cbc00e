"""What a hand with all rights cannot do to the tables; what it can is in docs/delivery.md."""

import pytest
from psycopg import errors as pg

from fixtures.bulk import Bulk, emit_many, end_all
from fixtures.cli import Cli
from fixtures.outbox import Holder, Outbox
from outbox_core.model.lifecycle import State
from outbox_core.store.doctor.facts import OUR_TRIGGERS
from outbox_core.store.inspect.backlog import backlog

pytestmark = pytest.mark.pg


def refused(outbox: Outbox, statement: str, match: str) -> str:
    """As a superuser, also in a session that pretends to be a replica; the hint."""
    for role in ("origin", "replica"):
        outbox.sql(f"SET session_replication_role = {role}")
        with pytest.raises((pg.RestrictViolation, pg.CheckViolation), match=match) as caught:
            outbox.sql(statement)
    outbox.sql("SET session_replication_role = origin")
    return str(caught.value.diag.message_hint)


def test_every_rule_is_known_to_the_check(outbox: Outbox) -> None:
    """A trigger that `check` does not know of could be dropped unnoticed."""
    found = outbox.sql(
        "SELECT t.tgname, t.tgenabled FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid"
        " WHERE c.relnamespace = 'outbox'::regnamespace AND NOT t.tgisinternal"
    )
    assert {name for name, _ in found} == OUR_TRIGGERS
    # A view's trigger cannot be ENABLE ALWAYS: without it, the view takes no row.
    assert {name for name, enabled in found if enabled != "A"} == {"published_comes_back"}


# Times that are none ------------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["-infinity", "10000-01-01 00:00+00", "0044-03-15 12:00+00 BC"])
def test_an_event_is_not_scheduled_for_a_time_that_no_calendar_has(
    outbox: Outbox, when: str
) -> None:
    with pytest.raises(pg.CheckViolation, match="available_at is neither within the years"):
        outbox.emit(available_at=when)


def test_a_delivery_is_not_moved_to_such_a_time_by_hand(outbox: Outbox) -> None:
    outbox.register("relay")
    outbox.emit()
    update = "UPDATE outbox.delivery SET available_at = '{}'"
    refused(outbox, update.format("-infinity"), "within the years 1 to 9999, or infinity")
    refused(outbox, update.format("infinity"), "in line")
    refused(outbox, "UPDATE outbox.delivery SET age_from = 'infinity'", "age_from is within")
    outbox.sql("UPDATE outbox.delivery SET available_at = 'infinity', hold = 'TIME'")


@pytest.mark.parametrize("ordering", ["None", "Key"])
@pytest.mark.parametrize("hold", ["NONE", "TIME"])
@pytest.mark.parametrize("when", ["infinity", "-infinity"])
def test_rows_with_such_a_time_are_counted_listed_and_claimed(
    outbox: Outbox, cli: Cli, ordering: str, hold: str, when: str
) -> None:
    """From before the rule, or while triggers were off."""
    relay = outbox.register("relay", ordering=ordering)
    outbox.emit(ordering_key="k")
    outbox.sql("ALTER TABLE outbox.delivery DISABLE TRIGGER ALL")
    outbox.sql("UPDATE outbox.delivery SET available_at = %s, hold = %s", when, hold)
    outbox.sql("ALTER TABLE outbox.delivery ENABLE TRIGGER ALL")
    seen = backlog(outbox.conn, relay)
    assert (seen.pending, seen.oldest_pending_seconds) == (1, 0)
    assert cli.json("counts")["relays"][0]["pending"] == 1
    cli.json("stuck")
    cli.json("list")
    claims = Holder(outbox, relay).claim() if ordering == "Key" else outbox.claim(relay)
    assert len(claims) == (hold == "NONE" or when == "-infinity")
    if claims:  # and whatever becomes of it can be written down
        outbox.fail(relay, claims, State.DEAD)


def test_a_backfilled_event_that_waits_without_end_has_an_age_that_can_be_read(
    outbox: Outbox,
) -> None:
    outbox.register("other")
    outbox.emit(available_at="infinity")
    outbox.register("relay")
    assert Bulk(outbox, action="Backfill").run().replayed == 1
    assert outbox.value("SELECT isfinite(age_from) FROM outbox.delivery WHERE replay_id <> ''")


# Slots, lanes, keys -------------------------------------------------------------------------------


@pytest.mark.parametrize("statement", ["DELETE FROM", "TRUNCATE"])
def test_slots_are_kept(outbox: Outbox, statement: str) -> None:
    refused(outbox, f"{statement} outbox.slot", "producers of a key wait for each other there")


def test_slots_are_not_renumbered_or_added(outbox: Outbox) -> None:
    refused(outbox, "UPDATE outbox.slot SET id = id WHERE id = 1", "UPDATE of outbox.slot")
    with pytest.raises(pg.CheckViolation):
        outbox.sql("INSERT INTO outbox.slot VALUES (65536)")


@pytest.mark.parametrize("fields", [{"ordering_key": "k"}, {"idempotency_key": "i"}])
def test_without_its_slot_an_event_is_refused_with_the_cure(
    outbox: Outbox, fields: dict[str, str]
) -> None:
    """Else two producers of one key would not wait for each other, and nobody would know."""
    outbox.sql("ALTER TABLE outbox.slot DISABLE TRIGGER ALL")
    outbox.sql("DELETE FROM outbox.slot")
    with pytest.raises(pg.RestrictViolation, match=r"outbox\.slot has no row \d+") as caught:
        outbox.emit(**fields)
    outbox.emit()  # which needs none
    hint = str(caught.value.diag.message_hint)
    outbox.sql(hint.partition("owner: ")[2])
    outbox.emit(**fields)


@pytest.mark.parametrize(
    "change",
    [
        "lane = lane # 1",
        "key_hash = key_hash + 64",
        "key_hash = NULL",
        "lane = -1",
        "lane = 7, key_hash = 7",
    ],
)
def test_a_delivery_keeps_the_lane_and_the_key_of_its_event(outbox: Outbox, change: str) -> None:
    outbox.register("relay", ordering="Key")
    outbox.emit(ordering_key="k")
    refused(outbox, f"UPDATE outbox.delivery SET {change}", "not those of the event's ordering key")


def test_lanes_and_keys_still_follow_a_change_of_the_ordering(outbox: Outbox) -> None:
    outbox.register("relay")
    emit_many(outbox, 20, keys=3)
    outbox.emit()
    relay = outbox.register("relay", ordering="Key")
    wrong = (
        "SELECT count(*) FROM outbox.deliveries d JOIN outbox.event e USING (seq) WHERE d.lane"
        " <> outbox.lane_of(outbox.key_hash(e.ordering_key), e.seq)"
    )
    assert outbox.value(wrong) == 0
    end_all(outbox, relay)
    outbox.register("relay")
    outbox.sql("UPDATE outbox.delivery SET lane = -1, key_hash = NULL")  # as nothing would order


@pytest.mark.parametrize("hold", ["KEY", "SUSPECT"])
def test_what_is_held_does_not_return_into_the_line_by_hand(outbox: Outbox, hold: str) -> None:
    outbox.register("relay", ordering="Key")
    outbox.emit(ordering_key="k")
    outbox.sql(f"UPDATE outbox.delivery SET hold = '{hold}'")
    refused(outbox, "UPDATE outbox.delivery SET hold = 'NONE'", "has hold TIME")


def test_what_was_published_does_not_return_into_the_line_by_hand(outbox: Outbox) -> None:
    relay = outbox.register("relay")
    outbox.emit()
    outbox.publish(relay, outbox.claim(relay))
    outbox.unpack()
    back = (
        "UPDATE outbox.delivery SET state = 'PENDING', published_at = NULL,"
        " previous_published_at = published_at"
    )
    refused(outbox, back, "hold TIME")
    outbox.sql(f"{back}, hold = 'TIME'")


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM outbox.lane WHERE lane = 1",
        "UPDATE outbox.lane SET lane = 63 WHERE lane = 1",
        "UPDATE outbox.lane SET relay_id = 99",
        "TRUNCATE outbox.lane",
    ],
)
def test_lanes_are_kept(outbox: Outbox, statement: str) -> None:
    outbox.register("relay", ordering="Key")
    refused(outbox, statement, r"outbox\.lane is not allowed")


def test_a_relay_that_is_made_to_order_by_hand_has_lanes(outbox: Outbox) -> None:
    outbox.register("relay")
    outbox.sql("UPDATE outbox.relay SET ordering = 'Key'")
    assert outbox.value("SELECT count(*) FROM outbox.lane") == 64


@pytest.mark.parametrize("change", ["patterns = '{x}'", "patterns = NULL", "event_types = '{b}'"])
def test_a_relay_matches_what_it_registered(outbox: Outbox, change: str) -> None:
    outbox.register("relay", ["a.*"])
    hint = refused(outbox, f"UPDATE outbox.relay SET {change}", "not those of its event_types")
    assert "register_relay" in hint
    outbox.register("relay", ["b_*", "c"])
    assert outbox.value("SELECT patterns FROM outbox.relay") == [r"b\_%", "c"]


# Within the ordinary moves, and what would be found by nobody -------------------------------------


def test_a_claim_or_its_end_does_not_move_the_time(outbox: Outbox) -> None:
    relay = outbox.register()
    outbox.emit()
    refused(
        outbox,
        "UPDATE outbox.delivery SET state = 'CLAIMED', attempts = 1, available_at = '-infinity',"
        " claimed_at = now(), claimed_by = 'me', claim_token = 1, lease_until = now()",
        "within the years 1 to 9999, or infinity",
    )
    outbox.claim(relay)
    outbox.unpack()
    refused(
        outbox,
        "UPDATE outbox.delivery SET state = 'PUBLISHED', published_at = now(),"
        " available_at = '20000-01-01', claimed_at = NULL, claimed_by = NULL, claim_token = NULL,"
        " lease_until = NULL",
        "within the years 1 to 9999, or infinity",
    )


def test_nothing_waits_behind_a_key_that_it_does_not_have(outbox: Outbox) -> None:
    ordered, plain = outbox.register("ordered", ordering="Key"), outbox.register("plain")
    outbox.emit(ordering_key="k")
    parked = "UPDATE outbox.delivery SET hold = 'KEY' WHERE relay_id = {}"
    refused(outbox, parked.format(plain), "hold KEY needs a key")
    outbox.sql(parked.format(ordered))
    refused(
        outbox,
        f"UPDATE outbox.delivery SET lane = -1, key_hash = NULL WHERE relay_id = {ordered}",
        "are not those of the event's ordering key",
    )

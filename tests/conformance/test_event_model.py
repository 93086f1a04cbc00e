"""000: the event model, as far as the store carries it."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg import errors as pg

from dev.services import wait_until
from fixtures.made_settings import relay_settings
from fixtures.outbox import Holder, Outbox
from fixtures.relays import Broker, RunRelay
from outbox_core.model.event import datetime_of
from outbox_core.model.lifecycle import State
from outbox_relay.worker.reaper import Reaper

pytestmark = pytest.mark.pg

REJECTED = (pg.RestrictViolation, pg.CheckViolation)


def test_em_01_the_five_required_fields_are_there_also_when_no_relay_matches(
    outbox: Outbox,
) -> None:
    outbox.register("others", ["payment.*"])
    event = outbox.event(outbox.emit("order.created"))
    assert event["relay"] is None
    for field in ("event_id", "event_type", "payload", "state", "created_at"):
        assert event[field] is not None, field


@pytest.mark.parametrize("field", ["event_type", "payload"])
def test_em_01_an_event_without_a_required_field_is_refused(outbox: Outbox, field: str) -> None:
    with pytest.raises(pg.NotNullViolation):
        outbox.insert(**{field: None})
    assert outbox.events() == []


def test_em_02_a_second_event_with_the_same_id_is_refused(outbox: Outbox) -> None:
    event_id = outbox.insert()
    with pytest.raises(pg.UniqueViolation):
        outbox.insert(event_id=event_id)


def test_em_04_tc_01_ids_are_uuids_and_the_callers_are_kept(outbox: Outbox) -> None:
    mine = uuid4()
    assert outbox.emit(event_id=mine) == mine
    with pytest.raises(pg.InvalidTextRepresentation):
        outbox.insert(event_id="not-a-uuid")


@pytest.mark.parametrize("bad", ["", " ", "\t", " order.created", "order.created\n"])
def test_em_05_a_blank_or_padded_event_type_is_refused(outbox: Outbox, bad: str) -> None:
    with pytest.raises(pg.CheckViolation, match="event_type"):
        outbox.emit(bad)


def test_em_05_a_versioned_event_type_is_kept(outbox: Outbox) -> None:
    assert outbox.event(outbox.emit("order.updated.v2"))["event_type"] == "order.updated.v2"


@pytest.mark.parametrize(
    "payload", [b"", b"\x00\x01\xff", b"{broken json", "žluťoučký".encode(), b"x" * 1_000_000]
)
def test_em_08_em_09_any_payload_is_kept_byte_for_byte(outbox: Outbox, payload: bytes) -> None:
    relay = outbox.register()
    event_id = outbox.emit(payload=payload)
    assert bytes(outbox.event(event_id)["payload"]) == payload
    assert outbox.claim(relay)[0].payload == payload


@pytest.mark.parametrize("state", ["DELIVERED", "FAILED", "pending", ""])
def test_em_11_any_other_state_is_refused(outbox: Outbox, state: str) -> None:
    outbox.register()
    outbox.emit()
    with pytest.raises(pg.InvalidTextRepresentation):
        outbox.sql("UPDATE outbox.delivery SET state = %s::text::outbox.state", state)


@pytest.fixture
def producer(outbox: Outbox) -> Any:
    with outbox.connect(autocommit=True) as conn:
        conn.execute("SET ROLE outbox_producer")
        yield conn


def test_em_12_a_producer_inserts_events(outbox: Outbox, producer: Any) -> None:
    outbox.register()
    plain = outbox.insert(producer, ordering_key="k", idempotency_key="i", causation_id=uuid4())
    emitted = producer.execute("SELECT outbox.emit('a.b', '{}'::jsonb, 'k')").fetchone()[0]
    assert outbox.event(plain)["state"] == outbox.event(emitted)["state"] == "PENDING"


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE outbox.delivery SET state = 'DEAD'",
        "DELETE FROM outbox.delivery",
        "INSERT INTO outbox.delivery (relay_id, seq, available_at) VALUES (1, 1, now())",
        "SELECT * FROM outbox.event",
        "SELECT * FROM outbox.deliveries",
        "SELECT * FROM outbox.events",
        "UPDATE outbox.event SET event_type = 'x'",
        "DELETE FROM outbox.event",
        "INSERT INTO outbox.event (seq, event_type, payload) VALUES (1, 'a', '')",
        "INSERT INTO outbox.relay (name, ordering, version) VALUES ('x', 'None', 9)",
        "SELECT * FROM outbox.slot FOR UPDATE",
        "SELECT outbox.register_relay('mine')",
        "SELECT outbox.claim(1, 'relay', 'me', 7, 10, '1 min', 0, NULL, false, false)",
        "SELECT outbox.require('correlation_id')",
        "INSERT INTO outbox.audit (actor) VALUES ('x')",
        "SELECT nextval('outbox.event_seq')",
    ],
)
def test_em_12_a_producer_can_do_nothing_else(
    outbox: Outbox, producer: Any, statement: str
) -> None:
    outbox.register()
    outbox.emit()
    with pytest.raises(pg.InsufficientPrivilege):
        producer.execute(statement)


def test_em_13_created_at_is_the_servers_time_even_if_the_producer_sets_it(
    outbox: Outbox,
) -> None:
    before = outbox.value("SELECT clock_timestamp()")
    event_id = outbox.insert(created_at=datetime(2001, 1, 1, tzinfo=UTC))
    after = outbox.value("SELECT clock_timestamp()")
    assert before <= outbox.event(event_id)["created_at"] <= after


def test_em_17_the_partition_key_makes_nobody_wait(outbox: Outbox) -> None:
    relay = outbox.register()
    outbox.emit(partition_key="p")
    second = outbox.emit(partition_key="p")
    outbox.fail(relay, outbox.claim(relay, limit=1), delay=3600)
    assert [c.event_id for c in outbox.claim(relay)] == [str(second)]


def test_em_19_metadata_makes_a_round_trip(outbox: Outbox) -> None:
    metadata = {"source": "api", "span": {"id": 7}, "tags": ["a"]}
    assert outbox.event(outbox.emit(metadata=metadata))["metadata"] == metadata


def test_em_21_metadata_does_not_change_what_is_claimed(outbox: Outbox) -> None:
    relay = outbox.register()
    outbox.emit(ordering_key="k", headers={"a": "1"})
    outbox.emit(ordering_key="k", headers={"a": "1"}, metadata={"topic": "x", "priority": 9})
    plain, noted = outbox.claim(relay)
    for field in ("event_type", "payload", "headers", "routing_key", "attempts", "spent"):
        assert getattr(plain, field) == getattr(noted, field)


@pytest.mark.parametrize("bad", [["x"], "x", 7])
def test_em_21_metadata_that_is_no_object_is_refused(outbox: Outbox, bad: object) -> None:
    with pytest.raises(pg.CheckViolation, match="metadata"):
        outbox.sql(
            "INSERT INTO outbox.event (event_type, payload, metadata) VALUES ('a', '', %s)",
            psycopg.types.json.Jsonb(bad),
        )


@pytest.mark.parametrize("headers", [None, {}, []])
def test_em_27_headers_may_be_empty(outbox: Outbox, headers: object) -> None:
    relay = outbox.register()
    outbox.emit(headers=headers)
    assert outbox.claim(relay)[0].headers == []


def test_em_25_headers_keep_order_case_and_repetition(outbox: Outbox) -> None:
    relay = outbox.register()
    pairs: list[list[str | None]] = [["B", "1"], ["a", ""], ["B", "ž"], ["n", None]]
    outbox.emit(headers=pairs)
    assert outbox.claim(relay)[0].headers == [tuple(p) for p in pairs]


@pytest.mark.parametrize("bad", [{"a": 1}, {"a": {}}, [["a"]], [["a", 1]], [[1, "a"]], ["a"], 7])
def test_em_25_headers_that_are_not_pairs_of_strings_are_refused(outbox: Outbox, bad: Any) -> None:
    with pytest.raises(pg.CheckViolation, match="headers"):
        outbox.sql(
            "INSERT INTO outbox.event (event_type, payload, headers) VALUES ('a', '', %s)",
            psycopg.types.json.Jsonb(bad),
        )
    assert outbox.events() == []


def test_em_28_attempts_never_fall(outbox: Outbox) -> None:
    relay = outbox.register()
    outbox.emit()
    outbox.fail(relay, outbox.claim(relay))
    with pytest.raises(pg.RestrictViolation, match="attempts never fall"):
        outbox.sql("UPDATE outbox.delivery SET attempts = 0")
    assert outbox.value("SELECT attempts FROM outbox.deliveries") == 1


def test_em_28_attempts_grow_by_one_and_only_in_a_claim(outbox: Outbox) -> None:
    outbox.register()
    outbox.emit()
    with pytest.raises(pg.RestrictViolation, match="only in a claim"):
        outbox.sql("UPDATE outbox.delivery SET attempts = 1")


def test_em_29_tc_31_attempts_are_counted_before_each_attempt(
    outbox: Outbox, run_relay: RunRelay
) -> None:
    seen: list[tuple[int, int]] = []
    broker = Broker()

    def look(batch: Any) -> None:
        with outbox.connect() as conn:
            row = conn.execute("SELECT attempts FROM outbox.deliveries").fetchone()
        assert row is not None
        seen.append((batch[0].attempts, row[0]))

    broker.before = look
    broker.answer = failing_times(1)
    outbox.register()
    outbox.emit()
    run_relay(outbox.dsn, broker, retry={"baseDelay": "10ms"})
    wait_until(lambda: outbox.states() == {"PUBLISHED": 1}, 20, "published at the second attempt")
    assert seen == [(1, 1), (2, 2)]
    assert outbox.value("SELECT attempts FROM outbox.deliveries") == len(broker.calls) == 2


def failing_times(times: int) -> Any:
    from outbox_core.model.attempt import Acked, Error, ErrorClass, Refused

    def answer(claim: Any) -> Any:
        if claim.attempts <= times:
            text = f"failure {claim.attempts}"
            return Refused(Error.of(ErrorClass.TRANSIENT, f"CODE_{claim.attempts}", text))
        return Acked("t[0]@1")

    return answer


def test_em_30_em_31_em_32_ce_14_the_last_error_is_kept_with_code_text_and_class(
    outbox: Outbox, run_relay: RunRelay
) -> None:
    broker = Broker()
    broker.answer = failing_times(9)
    outbox.register()
    event_id = outbox.emit(max_attempts=2)
    run_relay(outbox.dsn, broker, retry={"baseDelay": "10ms"})
    wait_until(lambda: outbox.states() == {"DEAD": 1}, 20, "dead after two attempts")
    error = outbox.event(event_id)["last_error"]
    assert (error["class"], error["code"], error["text"]) == ("transient", "CODE_2", "failure 2")
    assert datetime.fromisoformat(error["at"]).tzinfo is not None


def test_em_33_em_34_an_event_is_not_claimed_before_its_time(outbox: Outbox) -> None:
    relay = outbox.register()
    due = outbox.value("SELECT now() + interval '700 ms'")
    event_id = outbox.emit(available_at=due)
    assert outbox.claim(relay) == []
    claims = wait_until(lambda: outbox.claim(relay), 10, "the event is due")
    assert claims[0].event_id == str(event_id)
    assert datetime_of(claims[0].claimed_at) >= due


def test_em_34_not_even_by_hand(outbox: Outbox) -> None:
    outbox.register()
    outbox.emit(available_at=datetime.now(UTC) + timedelta(hours=1))
    with pytest.raises(pg.RestrictViolation, match="available_at"):
        outbox.sql(
            "UPDATE outbox.delivery SET state = 'CLAIMED', hold = 'NONE', attempts = 1,"
            " claimed_at = now(), claimed_by = 'me', claim_token = 1, lease_until = now()"
        )


def test_em_35_an_event_without_available_at_is_claimed_at_the_first_look(outbox: Outbox) -> None:
    relay = outbox.register()
    outbox.insert(available_at=None)
    outbox.insert()
    assert len(outbox.claim(relay)) == 2


def test_em_37_em_50_a_claim_carries_the_servers_time_and_the_pods_name(outbox: Outbox) -> None:
    relay = outbox.register()
    event_id = outbox.emit()
    before = outbox.value("SELECT clock_timestamp()")
    outbox.claim(relay, owner="orders-7f9c-abcde")
    after = outbox.value("SELECT clock_timestamp()")
    event = outbox.event(event_id)
    assert before <= event["claimed_at"] <= after
    assert event["claimed_by"] == "orders-7f9c-abcde"


def test_em_38_a_renewal_moves_the_lease_and_not_claimed_at(outbox: Outbox) -> None:
    relay = outbox.register()
    event_id = outbox.emit()
    claims = outbox.claim(relay, lease=timedelta(seconds=5))
    before = outbox.event(event_id)
    longer = outbox.deliveries(relay, lease=timedelta(minutes=5))
    assert longer.renew(claims[0].token, [claims[0].seq]) == 1
    after = outbox.event(event_id)
    assert after["claimed_at"] == before["claimed_at"]
    assert after["lease_until"] > before["lease_until"] + timedelta(minutes=4)


@pytest.mark.parametrize("end", ["publish", "retry", "dead"])
def test_em_39_lc_13_the_claims_fields_are_cleared_however_it_ends(
    outbox: Outbox, end: str
) -> None:
    relay = outbox.register()
    event_id = outbox.emit()
    claims = outbox.claim(relay)
    if end == "publish":
        outbox.publish(relay, claims)
    else:
        outbox.fail(relay, claims, State.DEAD if end == "dead" else State.PENDING)
    event = outbox.event(event_id)
    assert (event["claimed_at"], event["claimed_by"], event["lease_until"]) == (None, None, None)


def test_em_42_published_at_is_not_before_the_acknowledgement(outbox: Outbox) -> None:
    relay = outbox.register()
    event_id = outbox.emit()
    claims = outbox.claim(relay)
    acknowledged = outbox.value("SELECT clock_timestamp()")
    outbox.publish(relay, claims)
    assert outbox.event(event_id)["published_at"] >= acknowledged


def test_em_43_published_at_does_not_change(outbox: Outbox) -> None:
    relay = outbox.register()
    outbox.emit()
    outbox.publish(relay, outbox.claim(relay))
    for change in ("first_at = now()", "last_at = now()", "times = ARRAY[now()]"):
        with pytest.raises(pg.RestrictViolation, match="what is published does not change"):
            outbox.sql(f"UPDATE outbox.published SET {change}")
    outbox.unpack()
    with pytest.raises(pg.RestrictViolation, match="published_at"):
        outbox.sql("UPDATE outbox.delivery SET published_at = now() + interval '1 s'")


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("event_id", "gen_random_uuid()"),
        ("event_type", "'other'"),
        ("ordering_key", "'other'"),
        ("partition_key", "'other'"),
        ("payload", "'other'"),
        ("headers", """'{"a": "b"}'"""),
        ("metadata", """'{"a": "b"}'"""),
        ("created_at", "now()"),
        ("seq", "seq + 1"),
    ],
)
@pytest.mark.parametrize("replica", [False, True])
def test_em_44_ce_02_no_field_of_an_event_changes_not_even_for_a_superuser(
    outbox: Outbox, column: str, value: str, replica: bool
) -> None:
    outbox.emit(ordering_key="k", partition_key="p")
    if replica:  # the setting that switches ordinary triggers off
        outbox.sql("SET session_replication_role = replica")
    with pytest.raises(pg.RestrictViolation, match="immutable"):
        outbox.sql(f"UPDATE outbox.event SET {column} = {value}")


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM outbox.event",
        "TRUNCATE outbox.event",
        "TRUNCATE outbox.event CASCADE",
        "DELETE FROM outbox.delivery",
        "TRUNCATE outbox.delivery",
    ],
)
def test_ce_02_lc_39_nothing_is_deleted_not_even_by_a_superuser(
    outbox: Outbox, statement: str
) -> None:
    outbox.register()
    event_id = outbox.emit()
    with pytest.raises(pg.RestrictViolation):
        outbox.sql(statement)
    assert outbox.event(event_id)["state"] == "PENDING"


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM outbox.unmatched",
        "TRUNCATE outbox.unmatched",
        "UPDATE outbox.unmatched SET seq = seq + 1",
    ],
)
def test_lc_39_what_nobody_wants_yet_is_kept_for_who_will(outbox: Outbox, statement: str) -> None:
    event_id = outbox.emit()
    for role in ("outbox_relay", "NONE"):
        outbox.sql(f"SET ROLE {role}")
        with pytest.raises((pg.RestrictViolation, pg.InsufficientPrivilege)):
            outbox.sql(statement)
    relay = outbox.register()
    outbox.sql("SELECT outbox.route_unmatched(10)")
    assert [c.event_id for c in outbox.claim(relay)] == [str(event_id)]
    assert outbox.value("SELECT count(*) FROM outbox.unmatched") == 0


def test_em_45_a_whole_life_changes_the_delivery_alone(outbox: Outbox) -> None:
    relay = outbox.register()
    outbox.emit(headers={"a": "1"}, metadata={"b": 2}, ordering_key="k")
    before = outbox.sql("SELECT e::text FROM outbox.event e")
    outbox.fail(relay, outbox.claim(relay))
    outbox.publish(relay, outbox.claim(relay))
    assert outbox.sql("SELECT e::text FROM outbox.event e") == before


CLAIMED = "claimed_at = now(), claimed_by = 'me', claim_token = 1, lease_until = now()"


@pytest.mark.parametrize(
    "change",
    [
        CLAIMED,  # claimed fields while PENDING
        "state = 'CLAIMED', attempts = 1",  # CLAIMED without them
        f"state = 'CLAIMED', attempts = 1, {CLAIMED.replace('now()', 'NULL', 1)}",
        f"state = 'CLAIMED', attempts = 1, {CLAIMED.replace(chr(39) + 'me' + chr(39), 'NULL')}",
        f"state = 'CLAIMED', attempts = 1, published_at = now(), {CLAIMED}",
        "published_at = now()",
    ],
)
def test_em_48_em_49_em_50_fields_that_do_not_go_with_the_state_are_refused(
    outbox: Outbox, change: str
) -> None:
    outbox.register()
    event_id = outbox.emit()
    with pytest.raises(REJECTED):
        outbox.sql(f"UPDATE outbox.delivery SET {change}")
    assert outbox.event(event_id)["state"] == "PENDING"


def test_em_55_em_56_extra_fields_change_nothing_about_delivery(outbox: Outbox) -> None:
    relay = outbox.register()
    cause = outbox.emit()
    outbox.publish(relay, outbox.claim(relay))
    outbox.emit(
        tenant_id="t",
        correlation_id="c",
        causation_id=cause,
        aggregate_type="order",
        aggregate_id="7",
        idempotency_key="i",
        occurred_at=datetime.now(UTC),
        max_attempts=5,
        content_type="application/json",
    )
    outbox.emit()
    rich, poor = outbox.claim(relay)
    assert (rich.attempts, rich.payload, rich.routing_key) == (
        poor.attempts,
        poor.payload,
        poor.routing_key,
    )
    assert outbox.publish(relay, [rich, poor]) == []
    assert outbox.states() == {"PUBLISHED": 3}


def test_ek_07_a_plain_insert_and_emit_give_the_same_row(outbox: Outbox) -> None:
    outbox.register()
    fields: dict[str, Any] = {
        "ordering_key": "k", "partition_key": "p", "headers": {"a": "1"}, "metadata": {"b": 2},
        "tenant_id": "t", "correlation_id": "c", "aggregate_type": "order", "aggregate_id": "7",
        "content_type": "text/plain", "max_attempts": 3,
    }  # fmt: skip
    one = dict(outbox.event(outbox.insert(event_type="a.b", payload=b"x", **fields)))
    two = dict(outbox.event(outbox.emit("a.b", b"x", **fields)))
    differing = {"seq", "event_id", "created_at", "available_at"}
    assert {k: v for k, v in one.items() if k not in differing} == {
        k: v for k, v in two.items() if k not in differing
    }


def test_ek_07_emit_takes_json_and_text_too(outbox: Outbox) -> None:
    relay = outbox.register()
    outbox.sql("""SELECT outbox.emit('a.b', '{"n": 1}'::jsonb)""")
    outbox.sql("""SELECT outbox.emit('a.b', 'plain ž')""")
    json, text = outbox.claim(relay)
    assert (json.payload, json.content_type) == (b'{"n": 1}', "application/json")
    assert text.payload == "plain ž".encode()


def test_ek_11_times_are_instants_whatever_the_sessions_time_zone(outbox: Outbox) -> None:
    moment = datetime(2026, 3, 29, 1, 30, 0, 123456, tzinfo=UTC)
    event_id = outbox.emit(occurred_at=moment)
    outbox.sql("SET TimeZone = 'Asia/Kathmandu'")
    assert outbox.event(event_id)["occurred_at"] == moment


OUT_OF_THE_CALENDAR = ("infinity", "-infinity", "10000-01-01 00:00+00", "0044-03-15 12:00+00 BC")


@pytest.mark.parametrize("when", OUT_OF_THE_CALENDAR)
def test_ek_11_a_time_that_no_consumer_could_read_is_refused(outbox: Outbox, when: str) -> None:
    with pytest.raises(pg.CheckViolation, match="occurred_at is not within the years 1 to 9999"):
        outbox.emit(occurred_at=when)


@pytest.mark.parametrize("zone", ["America/Los_Angeles", "Pacific/Kiritimati"])
@pytest.mark.parametrize("when", ["0001-01-02 00:00+00", "9999-12-30 23:59:59.999999+00"])
def test_ek_11_the_whole_calendar_is_claimed_in_every_time_zone(
    outbox: Outbox, zone: str, when: str
) -> None:
    relay = outbox.register()
    outbox.emit(occurred_at=when)
    outbox.sql("SELECT set_config('timezone', %s, false)", zone)
    (claim,) = outbox.claim(relay)
    assert claim.occurred_at is not None


@pytest.mark.parametrize("ordering", ["None", "Key"])
def test_em_56_a_time_that_got_in_all_the_same_stops_neither_claims_nor_the_reaper(
    outbox: Outbox, ordering: str
) -> None:
    relay = outbox.register(ordering=ordering)
    outbox.sql("ALTER TABLE outbox.event DISABLE TRIGGER event_arrives")
    for seq, when in enumerate(OUT_OF_THE_CALENDAR, 1):
        outbox.sql(
            "INSERT INTO outbox.event (seq, created_at, event_type, payload, occurred_at)"
            " VALUES (%s, now(), 'a.b', '', %s)",
            seq,
            when,
        )
    claims = outbox.claim(relay) if ordering == "None" else Holder(outbox, relay).claim()
    assert [c.occurred_at for c in claims] == [None] * len(OUT_OF_THE_CALENDAR)
    outbox.end_leases()
    report = Reaper(outbox.conn, relay, relay_settings(ordering=ordering)).reap()
    assert report.reaped == len(OUT_OF_THE_CALENDAR)


def test_oo_03_an_event_type_that_looks_like_an_address_is_warned_about(outbox: Outbox) -> None:
    notices: list[str] = []
    outbox.conn.add_notice_handler(lambda d: notices.append(d.message_primary or ""))
    outbox.emit("topic://orders")
    outbox.emit("order.created")
    assert len(notices) == 1
    assert "looks like an address" in notices[0]


def test_oo_08_tc_03_an_open_or_prepared_transaction_is_never_claimed(outbox: Outbox) -> None:
    relay = outbox.register()
    with outbox.connect() as conn:
        outbox.insert(conn)
        assert outbox.claim(relay) == []
        conn.execute("PREPARE TRANSACTION 'later'")
    assert outbox.claim(relay) == []
    outbox.sql("COMMIT PREPARED 'later'")
    assert len(outbox.claim(relay)) == 1

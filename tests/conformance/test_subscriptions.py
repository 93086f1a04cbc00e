"""003 and 004: fan-out, late subscribers, idempotency, correlation and causation, tenants."""

import threading
from datetime import UTC, datetime
from uuid import uuid4

import pytest
from psycopg import errors as pg

from dev.services import wait_until
from fixtures.bulk import Bulk
from fixtures.outbox import Outbox
from fixtures.relays import Broker, RunRelay
from outbox_core.store import relays as relay_store

pytestmark = pytest.mark.pg


def route(outbox: Outbox) -> None:
    while outbox.value("SELECT outbox.route_unmatched(100)"):
        pass


def test_ek_12_one_delivery_per_event_and_relay(outbox: Outbox) -> None:
    for name in ("a", "b", "c"):
        outbox.register(name)
    event_id = outbox.emit()
    assert [e["relay"] for e in outbox.events("event_id = %s", event_id)] == ["a", "b", "c"]
    with pytest.raises(pg.UniqueViolation):
        outbox.sql("INSERT INTO outbox.delivery (relay_id, seq, available_at) VALUES (1, 1, now())")


def test_ek_13_relays_do_not_feel_each_others_failures(outbox: Outbox) -> None:
    broken, fine = outbox.register("broken"), outbox.register("fine")
    for _ in range(5):
        outbox.emit()
    outbox.fail(broken, outbox.claim(broken), delay=3600)
    outbox.publish(fine, outbox.claim(fine))
    assert outbox.states("broken") == {"PENDING": 5}
    assert outbox.states("fine") == {"PUBLISHED": 5}


def test_ek_14_a_claim_returns_the_whole_event(outbox: Outbox) -> None:
    relay = outbox.register()
    event_id = outbox.emit(
        "order.created",
        b"body",
        headers={"a": "1"},
        tenant_id="t",
        correlation_id="c",
        aggregate_type="order",
        aggregate_id="7",
        partition_key="p",
        metadata={"traceparent": "00-1-2-01"},
    )
    (claim,) = outbox.claim(relay)
    assert (claim.event_id, claim.event_type, claim.payload) == (
        str(event_id),
        "order.created",
        b"body",
    )
    assert (claim.tenant_id, claim.correlation_id, claim.aggregate_id) == ("t", "c", "7")
    assert (claim.headers, claim.partition_key, claim.traceparent) == (
        [("a", "1")],
        "p",
        "00-1-2-01",
    )


@pytest.mark.parametrize(
    ("patterns", "wanted"),
    [
        (["order.*"], {"order.created", "order.item.added"}),
        (["*.created"], {"order.created", "payment.created"}),
        (["order.created"], {"order.created"}),
        (["payment.*", "order.created"], {"order.created", "payment.created"}),
        (["*"], {"order.created", "order.item.added", "payment.created", "order_created", "100%"}),
        (["order_created"], {"order_created"}),
        (["100%"], {"100%"}),
    ],
)
def test_ek_15_only_subscribed_types_are_fanned_out(
    outbox: Outbox, patterns: list[str], wanted: set[str]
) -> None:
    relay = outbox.register("r", patterns)
    for kind in ("order.created", "order.item.added", "payment.created", "order_created", "100%"):
        outbox.emit(kind)
    assert {c.event_type for c in outbox.claim(relay)} == wanted


def test_ek_15_a_late_subscriber_gets_what_nobody_wanted_once(outbox: Outbox) -> None:
    outbox.register("payments", ["payment.*"])
    missed = [str(outbox.emit("order.created")) for _ in range(250)]
    outbox.emit("payment.made")
    assert outbox.value("SELECT count(*) FROM outbox.unmatched") == 250
    late = outbox.register("orders", ["order.*"])
    route(outbox)
    route(outbox)
    assert sorted(c.event_id for c in outbox.claim(late, limit=1000)) == sorted(missed)
    assert outbox.value("SELECT count(*) FROM outbox.unmatched") == 0
    later = outbox.register("more-orders", ["order.*"])
    route(outbox)
    assert outbox.claim(later) == []  # somebody had wanted them


def test_ek_15_what_still_nobody_wants_waits_on_and_is_not_asked_again(outbox: Outbox) -> None:
    outbox.emit("a.b")
    outbox.register("c", ["c.*"])
    assert outbox.value("SELECT outbox.route_unmatched(100)") == 1
    assert outbox.value("SELECT outbox.route_unmatched(100)") == 0
    relay = outbox.register("a", ["a.*"])
    route(outbox)
    assert len(outbox.claim(relay)) == 1


def test_ek_15_a_changed_subscription_counts_as_late(outbox: Outbox) -> None:
    outbox.register("r", ["x.*"])
    outbox.emit("y.z")
    relay = outbox.register("r", ["x.*", "y.*"])
    route(outbox)
    assert len(outbox.claim(relay)) == 1


@pytest.mark.parametrize("isolation", ["READ COMMITTED", "REPEATABLE READ"])
def test_ek_15_an_insert_that_races_with_the_registration_is_delivered_once(
    outbox: Outbox, isolation: str
) -> None:
    with outbox.connect() as before:
        before.execute(f"SET TRANSACTION ISOLATION LEVEL {isolation}")
        outbox.insert(before, event_type="a.one")
        relay = outbox.register("late", ["a.*"])
        route(outbox)
        outbox.insert(before, event_type="a.two")  # sees the relay, or not, by its isolation
        before.commit()
    route(outbox)
    claims = outbox.claim(relay)
    assert sorted(c.event_type for c in claims) == ["a.one", "a.two"]
    assert outbox.value("SELECT count(*) FROM outbox.unmatched") == 0


def test_ek_15_many_inserts_racing_with_many_registrations(outbox: Outbox) -> None:
    stop = threading.Event()
    ids: list[str] = []
    lock = threading.Lock()

    def produce(number: int) -> None:
        with outbox.connect() as conn:
            while not stop.is_set():
                event_id = outbox.insert(conn, event_type=f"t{number}.x")
                conn.commit()
                with lock:
                    ids.append(str(event_id))

    threads = [threading.Thread(target=produce, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    relays = []
    for n in range(4):
        enough = len(ids) + 40
        wait_until(lambda: len(ids) > enough, 30, "events come in")  # noqa: B023
        relays.append(outbox.register(f"r{n}", [f"t{n}.*"]))
    stop.set()
    for thread in threads:
        thread.join()
    route(outbox)
    delivered = [e["event_id"] for e in outbox.events("relay IS NOT NULL")]
    assert sorted(map(str, delivered)) == sorted(ids)


def test_ek_15_what_others_got_in_a_transaction_around_the_registration_comes_by_a_backfill(
    outbox: Outbox,
) -> None:
    """As in docs/relays.md: a transaction that emitted before does not know the new relay."""
    outbox.register("first")
    with outbox.connect() as conn:
        event = outbox.insert(conn)
        outbox.register("relay")
        conn.commit()
    later = outbox.emit()
    route(outbox)
    has = "SELECT event_id FROM outbox.events WHERE relay = 'relay' ORDER BY seq"
    assert outbox.sql(has) == [(later,)]
    assert Bulk(outbox, action="Backfill").run().replayed == 1
    assert outbox.sql(has) == [(event,), (later,)]


def test_ek_15_a_running_relay_fetches_what_it_missed(outbox: Outbox, run_relay: RunRelay) -> None:
    missed = outbox.emit("order.created")
    broker = Broker()
    run_relay(outbox.dsn, broker, subscription={"eventTypes": ["order.*"]}, lease="1.2s")
    wait_until(lambda: outbox.event(missed)["state"] == "PUBLISHED", 20, "published")


def test_ek_15_leases_are_renewed_while_many_are_offered_again(
    outbox: Outbox, run_relay: RunRelay, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = 0

    def endless(conn: object, limit: int) -> int:
        nonlocal steps
        steps += 1
        outbox.sql("SELECT pg_sleep(0.05)")
        return limit

    monkeypatch.setattr(relay_store, "route_unmatched", endless)
    outbox.insert()
    relay = run_relay(outbox.dsn, Broker(), ordering="Key", lease="1.2s")
    wait_until(lambda: steps > 60, 20, "offering goes on for several leases")
    assert outbox.value("SELECT expires_at > now() FROM outbox.holder")
    assert relay.relay.health.troubles == {}


def test_ek_15_offering_again_does_not_walk_over_all_deliveries(outbox: Outbox) -> None:
    outbox.register(event_types=["a.*"])
    outbox.sql(
        "INSERT INTO outbox.event (event_type, payload)"
        " SELECT 'a.b', ''::bytea FROM generate_series(1, 20000)"
        " UNION ALL SELECT 'b.c', '' FROM generate_series(1, 300)"
    )
    outbox.sql("ANALYZE")
    outbox.register("late", event_types=["b.c"])
    with outbox.connect(autocommit=True) as conn:
        conn.execute("SELECT pg_stat_reset()")
        conn.execute("SELECT outbox.route_unmatched(1000)")
        conn.execute("SELECT pg_stat_force_next_flush()")
    read = wait_until(
        lambda: outbox.sql(
            "SELECT sum(idx_blks_hit + idx_blks_read)::int FROM pg_statio_user_indexes"
            " WHERE relname = 'delivery'"
            " HAVING (SELECT n_tup_ins FROM pg_stat_user_tables WHERE relname = 'delivery') > 0"
        ),
        10,
        "the counters are written",
    )
    assert read[0][0] < 20 * 300, "a few blocks for each"
    assert outbox.states("late") == {"PENDING": 300}


def test_ek_08_ek_09_a_sentinel_is_kept_and_never_delivered(outbox: Outbox) -> None:
    relay = outbox.register()
    outbox.emit("outbox.sentinel", metadata={"action": "AuditAction"})
    assert outbox.claim(relay) == []
    assert outbox.value("SELECT count(*) FROM outbox.unmatched") == 0
    assert outbox.value("SELECT count(*) FROM outbox.event") == 1


def test_ek_20_without_relays_only_events_grow(outbox: Outbox) -> None:
    outbox.emit()
    assert outbox.value("SELECT count(*) FROM outbox.deliveries") == 0
    assert outbox.states() == {"PENDING": 1}


def test_lc_39_a_relay_that_is_gone_and_comes_back_goes_on(outbox: Outbox) -> None:
    relay = outbox.register()
    kept = str(outbox.emit())
    outbox.sql("UPDATE outbox.relay SET active = false")
    meanwhile = str(outbox.emit())
    assert outbox.register() == relay
    route(outbox)
    assert sorted(c.event_id for c in outbox.claim(relay)) == sorted([kept, meanwhile])


def test_ce_23_a_known_idempotency_key_is_ignored_and_the_first_id_returned(outbox: Outbox) -> None:
    relay = outbox.register()
    with outbox.connect() as conn:
        emit = "SELECT outbox.emit('a.b', %s::bytea, idempotency_key => 'pay-7')"
        first = conn.execute(emit, (b"1",)).fetchone()
        again = conn.execute(emit, (b"2",)).fetchone()
        outbox.insert(conn, idempotency_key="pay-7")  # a plain INSERT behaves the same
        assert first == again
        conn.commit()  # the transaction is alive
    assert [c.payload for c in outbox.claim(relay)] == [b"1"]


def test_ce_23_twins_in_one_statement_are_one_event(outbox: Outbox) -> None:
    outbox.sql(
        "INSERT INTO outbox.event (event_type, payload, idempotency_key)"
        " SELECT 'a.b', '', 'same' FROM generate_series(1, 5)"
    )
    assert outbox.value("SELECT count(*) FROM outbox.event") == 1


def test_ce_23_racing_twins_are_one_event_and_nobody_fails(outbox: Outbox) -> None:
    ids: list[object] = []

    def emit() -> None:
        with outbox.connect() as conn:
            for n in range(30):
                row = conn.execute(
                    "SELECT outbox.emit('a.b', '', idempotency_key => %s)", (f"i{n}",)
                ).fetchone()
                ids.append(row)
                conn.commit()

    threads = [threading.Thread(target=emit) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outbox.value("SELECT count(*) FROM outbox.event") == 30
    assert len(set(ids)) == 30


def test_ce_21_idempotency_is_scoped_by_tenant(outbox: Outbox) -> None:
    ids = {outbox.emit(idempotency_key="i", tenant_id=t) for t in ("a", "b", None, "a")}
    assert len(ids) == 3


def test_ce_21_ce_22_the_derived_key_is_deterministic_and_readable(outbox: Outbox) -> None:
    def key(payload: bytes) -> str:
        return str(
            outbox.value(
                "SELECT outbox.derive_idempotency_key('order', '7', 'order.paid', %s)", payload
            )
        )

    assert key(b"x") == key(b"x") != key(b"y")
    assert key(b"x").startswith("order:7:order.paid:")


@pytest.mark.parametrize(
    ("what", "error"),
    [
        ("idempotency_key", pg.CheckViolation),
        ("correlation_id", pg.CheckViolation),
        ("known_cause", pg.ForeignKeyViolation),
    ],
)
def test_ce_09_ce_20_ce_27_what_an_installation_requires_is_enforced(
    outbox: Outbox, what: str, error: type[Exception]
) -> None:
    outbox.emit(causation_id=uuid4())  # old events stay as they are
    outbox.sql("SELECT outbox.require(%s)", what)
    with pytest.raises(error, match=what):
        outbox.emit(causation_id=uuid4())
    outbox.sql("SELECT outbox.require(%s, false)", what)
    outbox.emit(causation_id=uuid4())


def test_ce_20_an_unknown_requirement_is_refused(outbox: Outbox) -> None:
    with pytest.raises(pg.InvalidParameterValue, match="cannot require"):
        outbox.sql("SELECT outbox.require('luck')")


def test_ce_09_a_caused_event_inherits_the_correlation(outbox: Outbox) -> None:
    cause = outbox.emit(correlation_id="request-7")
    assert outbox.event(outbox.emit(causation_id=cause))["correlation_id"] == "request-7"
    own = outbox.emit(causation_id=cause, correlation_id="mine")
    assert outbox.event(own)["correlation_id"] == "mine"


def test_ce_27_causes_form_no_circle(outbox: Outbox) -> None:
    a, b, c = uuid4(), uuid4(), uuid4()
    with pytest.raises(pg.CheckViolation, match="cause itself"):
        outbox.emit(event_id=a, causation_id=a)
    outbox.emit(event_id=b, causation_id=a)  # a is not known yet: another service's event
    outbox.emit(event_id=c, causation_id=b)
    with pytest.raises(pg.CheckViolation, match="circle"):
        outbox.emit(event_id=a, causation_id=c)
    outbox.emit(event_id=a)


def test_ce_36_a_correction_is_a_new_event_that_names_the_old_one(outbox: Outbox) -> None:
    wrong = outbox.emit("order.priced", b"100")
    right = outbox.emit("order.price.corrected", b"90", causation_id=wrong)
    assert bytes(outbox.event(wrong)["payload"]) == b"100"
    assert outbox.event(right)["causation_id"] == wrong


def test_ce_28_the_chain_is_found_both_ways(outbox: Outbox) -> None:
    chain = [outbox.emit()]
    for _ in range(4):
        chain.append(outbox.emit(causation_id=chain[-1]))
    up = [r[1] for r in outbox.sql("SELECT * FROM outbox.causes(%s)", chain[-1])]
    down = [r[1] for r in outbox.sql("SELECT * FROM outbox.effects(%s)", chain[0])]
    assert up == chain[::-1]
    assert down == chain


def test_ce_26_tc_33_a_trace_is_in_order_and_whole(outbox: Outbox) -> None:
    ids = []
    for i in range(6):
        event_id = outbox.emit(correlation_id="c1" if i % 2 else "c2")
        if i % 2:
            ids.append(event_id)
    rows = outbox.sql("SELECT event_id FROM outbox.trace('c1')")
    assert [r[0] for r in rows] == ids


def test_ce_08_the_time_of_the_transition_is_kept_apart_from_the_insert(outbox: Outbox) -> None:
    happened = datetime(2020, 2, 29, 12, tzinfo=UTC)
    event = outbox.event(outbox.emit(occurred_at=happened))
    assert event["occurred_at"] == happened
    assert event["created_at"] > happened


def test_ce_35_a_tenants_relay_never_sees_anothers_events(outbox: Outbox) -> None:
    mine = outbox.register("a", tenants=["a"])
    for tenant in ("a", "b", None, "a"):
        outbox.emit(tenant_id=tenant)
    assert {c.tenant_id for c in outbox.claim(mine)} == {"a"}
    assert outbox.value("SELECT count(*) FROM outbox.unmatched") == 2


def test_ce_13_the_brokers_answer_is_kept(outbox: Outbox) -> None:
    relay = outbox.register()
    event_id = outbox.emit()
    claims = outbox.claim(relay)
    outbox.publish(relay, claims)
    assert outbox.event(event_id)["result"] == f"t[0]@{claims[0].seq}"


def test_a_notification_is_sent_only_for_relays_that_asked(outbox: Outbox) -> None:
    with outbox.connect(autocommit=True) as conn:
        conn.execute("LISTEN outbox")
        outbox.register("quiet")
        outbox.emit()
        outbox.sql("SELECT outbox.register_relay('loud', '{*}', NULL, 'None', true)")
        outbox.emit()
        heard = [n.payload for n in conn.notifies(timeout=2, stop_after=1)]
    assert heard == ["loud"]

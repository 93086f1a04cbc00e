"""001: the processing lifecycle, and what of 002 and Open Outbox s6 is about the same."""

import threading
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg import errors as pg

from dev.services import wait_until
from fixtures.losing import LosingProxy
from fixtures.made_settings import relay_settings
from fixtures.outbox import Holder, Outbox
from fixtures.relays import Broker, RunRelay
from outbox_core.model.attempt import Acked, Error, ErrorClass, Outcome, Refused
from outbox_core.model.lifecycle import TRANSITIONS, State
from outbox_core.store.connection import relay_application
from outbox_relay.worker.reaper import Reaper, ReapReport

pytestmark = pytest.mark.pg

FIELDS = {
    State.PENDING: "claimed_at = NULL, claimed_by = NULL, claim_token = NULL, lease_until = NULL,"
    " published_at = NULL, hold = 'TIME', available_at = now()",
    State.CLAIMED: "claimed_at = now(), claimed_by = 'me', claim_token = 1,"
    " lease_until = now() + interval '1 h', published_at = NULL, hold = 'NONE'",
    State.PUBLISHED: "claimed_at = NULL, claimed_by = NULL, claim_token = NULL,"
    " lease_until = NULL, published_at = now(), hold = 'NONE'",
    State.DEAD: "claimed_at = NULL, claimed_by = NULL, claim_token = NULL, lease_until = NULL,"
    " published_at = NULL, hold = 'NONE'",
}


def reap(outbox: Outbox, relay: int, **more: Any) -> ReapReport:
    return Reaper(outbox.conn, relay, relay_settings(**more)).reap()


def bring_to(outbox: Outbox, relay: int, state: State) -> None:
    outbox.emit()
    if state is State.PENDING:
        return
    claims = outbox.claim(relay)
    if state is State.PUBLISHED:
        outbox.publish(relay, claims)
    elif state is State.DEAD:
        outbox.fail(relay, claims, State.DEAD)


@pytest.mark.parametrize("after", State)
@pytest.mark.parametrize("before", State)
def test_lc_01_only_the_six_transitions_pass(outbox: Outbox, before: State, after: State) -> None:
    relay = outbox.register()
    bring_to(outbox, relay, before)
    outbox.unpack()
    move = f"UPDATE outbox.delivery SET state = '{after}', {FIELDS[after]}"
    if after is State.PENDING and before is State.PUBLISHED:
        move += ", previous_published_at = published_at"
    if after is State.CLAIMED:
        move += ", attempts = attempts + 1"
    if (before, after) in TRANSITIONS:
        outbox.sql(move)
        assert outbox.states() == {after: 1}
    elif before is not after:
        with pytest.raises(pg.RestrictViolation, match=r"does not become|only in a claim"):
            outbox.sql(move)
        assert outbox.states() == {before: 1}


@pytest.mark.parametrize("state", [State.CLAIMED, State.PUBLISHED, State.DEAD])
def test_lc_01_a_delivery_starts_as_pending(outbox: Outbox, state: State) -> None:
    relay = outbox.register()
    columns = {
        State.CLAIMED: (
            "claimed_at, claimed_by, claim_token, lease_until,",
            "now(), 'me', 1, now(),",
        ),
        State.PUBLISHED: ("published_at,", "now(),"),
        State.DEAD: ("", ""),
    }[state]
    with pytest.raises(pg.RestrictViolation, match="starts as PENDING"):
        outbox.sql(
            f"INSERT INTO outbox.delivery (relay_id, seq, {columns[0]} available_at, state)"
            f" VALUES ({relay}, 99, {columns[1]} now(), '{state}')"
        )


def test_lc_02_tc_08_the_publisher_is_given_only_what_is_claimed_by_us(
    outbox: Outbox, run_relay: RunRelay
) -> None:
    seen: list[tuple[str, str]] = []
    broker = Broker()

    def look(batch: Any) -> None:
        with outbox.connect() as conn:
            rows = conn.execute(
                "SELECT state::text, claimed_by FROM outbox.events WHERE event_id::text = ANY (%s)",
                ([c.event_id for c in batch],),
            ).fetchall()
        seen.extend(rows)

    broker.before = look
    outbox.register()
    for _ in range(20):
        outbox.emit()
    run_relay(outbox.dsn, broker, pod="pod-7", batchSize=3)
    wait_until(lambda: outbox.states() == {"PUBLISHED": 20}, 20, "all published")
    assert seen == [("CLAIMED", "pod-7")] * 20


def test_lc_06_tc_09_the_outcome_decides_the_state(outbox: Outbox, run_relay: RunRelay) -> None:
    broker = Broker()
    answers: dict[str, Outcome] = {
        "good": Acked("t[0]@1"),
        "bad": Refused(Error.of(ErrorClass.EVENT, "TOO_LARGE", "too large")),
        "later": Refused(Error.of(ErrorClass.TRANSIENT, "NO_TOPIC", "no topic")),
    }
    broker.answer = lambda claim: answers[claim.event_type]
    outbox.register()
    ids = {kind: outbox.emit(kind) for kind in answers}
    run_relay(outbox.dsn, broker)
    wait_until(lambda: outbox.event(ids["good"])["state"] == "PUBLISHED", 20, "published")
    wait_until(lambda: outbox.event(ids["bad"])["state"] == "DEAD", 20, "dead at once")
    wait_until(lambda: outbox.event(ids["later"])["last_error"], 20, "it failed")
    assert outbox.event(ids["later"])["state"] == "PENDING"
    assert outbox.event(ids["bad"])["attempts"] == 1
    assert outbox.event(ids["good"])["result"] == "t[0]@1"


def test_lc_08_lc_25_failures_are_retried_until_success_without_anybody(
    outbox: Outbox, run_relay: RunRelay
) -> None:
    broker = Broker()
    broker.answer = lambda c: (
        Acked("t[0]@1")
        if c.attempts > 4
        else Refused(Error.of(ErrorClass.TRANSIENT, "X", "not yet"))
    )
    outbox.register()
    outbox.emit()
    run_relay(outbox.dsn, broker, retry={"baseDelay": "10ms", "maxDelay": "50ms"})
    wait_until(lambda: outbox.states() == {"PUBLISHED": 1}, 20, "published at the fifth attempt")
    assert len(broker.calls) == 5


def test_lc_09_each_claim_counts_once_also_when_it_is_reaped(outbox: Outbox) -> None:
    relay = outbox.register()
    event_id = outbox.emit()
    outbox.claim(relay, lease=timedelta(0))
    assert reap(outbox, relay) == ReapReport(1, 0)
    assert outbox.event(event_id)["attempts"] == 1
    outbox.claim(relay, suspects=True)
    assert outbox.event(event_id)["attempts"] == 2


def test_lc_11_oo_04_a_retry_is_due_at_the_failure_plus_the_delay(outbox: Outbox) -> None:
    relay = outbox.register()
    event_id = outbox.emit()
    claims = outbox.claim(relay)
    before = outbox.value("SELECT clock_timestamp()")
    outbox.fail(relay, claims, delay=7.5)
    after = outbox.value("SELECT clock_timestamp()")
    due = outbox.event(event_id)["available_at"]
    assert before + timedelta(seconds=7.5) <= due <= after + timedelta(seconds=7.5)
    assert outbox.event(event_id)["state"] == "PENDING"


@pytest.mark.parametrize("end", ["attempts", "age", "permanent"])
def test_lc_15_lc_26_each_termination_condition_ends_in_dead(
    outbox: Outbox, run_relay: RunRelay, end: str
) -> None:
    broker = Broker()
    kind = ErrorClass.EVENT if end == "permanent" else ErrorClass.TRANSIENT
    broker.answer = lambda _: Refused(Error.of(kind, "X", "no"))
    outbox.register()
    event_id = outbox.emit()
    retry: dict[str, object] = {"baseDelay": "10ms", "maxDelay": "20ms", "maxAttempts": 1000}
    if end == "attempts":
        retry["maxAttempts"] = 3
    if end == "age":
        retry["maxAge"] = "1s"
    run_relay(outbox.dsn, broker, retry=retry)
    wait_until(lambda: outbox.event(event_id)["state"] == "DEAD", 20, "dead")
    event = outbox.event(event_id)
    if end == "attempts":
        assert event["attempts"] == 3
    if end == "age":
        assert event["last_error"]["class"] == "expired"
    if end == "permanent":
        assert event["attempts"] == 1


def test_ek_19_an_event_that_waited_too_long_is_dead_without_an_attempt(
    outbox: Outbox, run_relay: RunRelay
) -> None:
    broker = Broker()
    outbox.register()
    event_id = outbox.emit()
    young = wait_until(
        lambda: outbox.value("SELECT now() - created_at > '1.1 s' FROM outbox.event"), 10, "aged"
    )
    assert young
    run_relay(outbox.dsn, broker, retry={"maxAge": "1s"})
    wait_until(lambda: outbox.event(event_id)["state"] == "DEAD", 20, "expired")
    event = outbox.event(event_id)
    assert (event["attempts"], event["last_error"]["class"]) == (0, "expired")
    assert broker.calls == []


@pytest.mark.parametrize("state", [State.CLAIMED, State.PUBLISHED, State.DEAD])
def test_lc_21_oo_12_only_pending_events_are_claimed(outbox: Outbox, state: State) -> None:
    relay = outbox.register()
    bring_to(outbox, relay, state)
    assert outbox.claim(relay) == []


def test_lc_22_lc_31_oo_10_oo_12_ce_11_twenty_claimers_share_everything_and_overlap_in_nothing(
    outbox: Outbox,
) -> None:
    relay = outbox.register()
    outbox.sql(
        "INSERT INTO outbox.event (event_type, payload)"
        " SELECT 'a.b', '' FROM generate_series(1, 10000)"
    )
    taken: list[list[int]] = []
    too_many: list[int] = []
    lock = threading.Lock()

    def claimer(number: int) -> None:
        with outbox.connect(autocommit=True) as conn:
            while claims := outbox.claim(relay, limit=97, owner=f"pod-{number}", conn=conn):
                with lock:
                    taken.append([c.seq for c in claims])
                    if len(claims) > 97:
                        too_many.append(len(claims))

    threads = [threading.Thread(target=claimer, args=(n,)) for n in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seqs = [seq for batch in taken for seq in batch]
    assert too_many == []
    assert len(seqs) == len(set(seqs)) == 10000


def test_lc_23_lc_36_tc_12_after_a_second_claim_only_the_live_one_finalises(outbox: Outbox) -> None:
    relay = outbox.register()
    event_id = outbox.emit()
    slow = outbox.claim(relay, owner="slow", lease=timedelta(0))
    reap(outbox, relay)
    fast = outbox.claim(relay, owner="fast", suspects=True)
    assert [c.event_id for c in fast] == [str(event_id)]
    assert outbox.publish(relay, slow) == [slow[0].seq]  # lost, and reported
    assert outbox.event(event_id)["claimed_by"] == "fast"
    assert outbox.fail(relay, slow) == [slow[0].seq]
    assert outbox.publish(relay, fast) == []
    assert outbox.states() == {"PUBLISHED": 1}


def test_lc_27_terminal_events_stay_as_they_are(outbox: Outbox, run_relay: RunRelay) -> None:
    relay = outbox.register()
    bring_to(outbox, relay, State.PUBLISHED)
    bring_to(outbox, relay, State.DEAD)
    before = outbox.sql("SELECT d::text FROM outbox.deliveries d ORDER BY seq")
    broker = Broker()
    run_relay(outbox.dsn, broker, lease="1.2s")  # its keeper reaps every half a second
    probe = outbox.emit()
    wait_until(lambda: outbox.event(probe)["state"] == "PUBLISHED", 20, "the relay works")
    for _ in range(10):
        reap(outbox, relay)
    after = outbox.sql("SELECT d::text FROM outbox.deliveries d WHERE seq <= 2 ORDER BY seq")
    assert after == before


def test_lc_30_a_relay_that_comes_back_late_finalises_nothing_and_counts_it(
    outbox: Outbox, run_relay: RunRelay
) -> None:
    broker = Broker()
    relay = outbox.register()
    event_id = outbox.emit()
    first = threading.Event()

    def stolen_from(batch: Any) -> None:
        if first.is_set():
            return
        first.set()
        outbox.end_leases()
        with outbox.connect(autocommit=True) as conn:  # what a reaper on another node would do
            Reaper(conn, relay, relay_settings()).reap()

    broker.before = stolen_from
    local = run_relay(outbox.dsn, broker, lease="60s")  # else it is renewed before the reaper comes
    wait_until(lambda: outbox.event(event_id)["state"] == "PUBLISHED", 20, "published after all")
    assert len(broker.calls) == 2
    metrics = local.relay._context.metrics
    assert metrics.registry.get_sample_value("outbox_lost_claims_total") == 1


def test_lc_37_a_batch_that_fails_in_part_keeps_each_events_own_outcome(
    outbox: Outbox, run_relay: RunRelay
) -> None:
    broker = Broker()
    broker.answer = lambda c: (
        Acked(f"t[0]@{c.seq}")
        if c.seq % 3
        else Refused(Error.of(ErrorClass.TRANSIENT, "X", f"no to {c.seq}"))
    )
    outbox.register()
    for _ in range(30):
        outbox.emit()
    run_relay(outbox.dsn, broker, retry={"baseDelay": "1h", "maxDelay": "1h"})
    wait_until(lambda: outbox.states() == {"PUBLISHED": 20, "PENDING": 10}, 20, "each its own way")
    for event in outbox.events("state = 'PENDING'"):
        assert event["last_error"]["text"] == f"no to {event['seq']}"


def test_tc_02_a_rolled_back_transaction_leaves_nothing(outbox: Outbox) -> None:
    relay = outbox.register()
    with outbox.connect() as conn:
        outbox.insert(conn)
        conn.rollback()
    assert outbox.events() == []
    assert outbox.value("SELECT count(*) FROM outbox.deliveries") == 0
    with outbox.connect() as conn:
        outbox.insert(conn)
    assert len(outbox.claim(relay)) == 1


def test_tc_06_of_mixed_rows_only_the_eligible_are_claimed(outbox: Outbox) -> None:
    relay = outbox.register()
    for state in (State.PUBLISHED, State.DEAD, State.CLAIMED):
        bring_to(outbox, relay, state)
    outbox.emit(available_at=outbox.value("SELECT now() + interval '1 h'"))
    eligible = outbox.emit()
    assert [c.event_id for c in outbox.claim(relay)] == [str(eligible)]


def test_tc_11_em_36_an_expired_lease_makes_it_claimable_at_once(outbox: Outbox) -> None:
    relay = outbox.register()
    event_id = outbox.emit()
    outbox.claim(relay, lease=timedelta(0))
    assert outbox.claim(relay, suspects=True) == []  # reaped first, then claimed
    reap(outbox, relay)
    assert outbox.event(event_id)["state"] == "PENDING"
    assert outbox.event(event_id)["last_error"]["code"] == "LEASE_EXPIRED"
    assert [c.event_id for c in outbox.claim(relay, suspects=True)] == [str(event_id)]


def test_tc_11_a_live_lease_is_not_reaped(outbox: Outbox) -> None:
    relay = outbox.register()
    outbox.emit()
    outbox.claim(relay)
    assert reap(outbox, relay) == ReapReport(0, 0)
    assert outbox.states() == {"CLAIMED": 1}


def test_tc_21_a_thousand_events_cost_few_statements(outbox: Outbox, run_relay: RunRelay) -> None:
    """
    What the relay itself sends, seen on the wire: the database's own counters include whatever else
    uses it. What a relay repeats after some time (empty claims, chores, renewals) is due later than
    the test may take, so a slow machine sees no more of it.
    """
    outbox.register()
    outbox.sql(
        "INSERT INTO outbox.event (event_type, payload)"
        " SELECT 'a.b', '' FROM generate_series(1, 5000)"
    )
    broker = Broker()
    seldom: dict[str, Any] = {"lease": "10m", "polling": {"shortest": "10m", "longest": "10m"}}
    with LosingProxy(outbox.dsn) as proxy:  # without a plan it loses nothing
        local = run_relay(proxy.dsn, broker, batchSize=1000, **seldom)
        wait_until(lambda: outbox.states() == {"PUBLISHED": 5000}, 30, "all published")
        assert local.stop() == 0
    ours = [t for t in proxy.trips if t.application.startswith(relay_application("relay"))]
    sent = [statement for trip in ours for statement in trip.statements]
    # Together with the next claim, or alone where none follows.
    records = ("published => ", "outbox.finish_published(")
    batches = sum(any(record in statement for record in records) for statement in sent)
    assert batches == len(broker.calls) <= 6  # the two workers may share the last thousand
    assert len(sent) < 60, "\n".join(map(str, ours))


def test_oo_11_the_oldest_go_first(outbox: Outbox) -> None:
    relay = outbox.register()
    ids = [str(outbox.emit()) for _ in range(10)]
    assert [c.event_id for c in outbox.claim(relay, limit=4)] == ids[:4]


def test_oo_13_a_backend_killed_in_the_middle_of_finalising_leaves_no_half(outbox: Outbox) -> None:
    relay = outbox.register()
    for _ in range(50):
        outbox.emit()
    claims = outbox.claim(relay)
    victim = outbox.connect()
    done = victim.execute(
        "SELECT * FROM outbox.finish_published(%s, %s, %s, %s)",
        (relay, claims[0].token, [c.seq for c in claims], ["r"] * 50),
    )
    assert done.fetchall() == []
    outbox.sql("SELECT pg_terminate_backend(%s)", victim.info.backend_pid)
    with pytest.raises(psycopg.OperationalError):
        victim.commit()
    victim.close()
    assert outbox.states() == {"CLAIMED": 50}
    assert outbox.publish(relay, claims) == []


def test_oo_15_the_store_holds_no_retry_policy(outbox: Outbox) -> None:
    """The same failure, two policies: what differs is what the relay asked for."""
    relay = outbox.register()
    outbox.emit()
    outbox.emit()
    outbox.fail(relay, outbox.claim(relay, limit=1), delay=1)
    outbox.fail(relay, outbox.claim(relay, limit=1), delay=100)
    first, second = (e["available_at"] for e in outbox.events())
    assert timedelta(seconds=98) < second - first < timedelta(seconds=101)


def test_em_52_oo_09_what_is_not_finished_can_always_be_claimed_again(outbox: Outbox) -> None:
    relay = outbox.register()
    event_id = outbox.emit()
    for _ in range(5):
        claims = outbox.claim(relay) or outbox.claim(relay, suspects=True)
        assert [c.event_id for c in claims] == [str(event_id)]
        outbox.fail(relay, claims)
    assert outbox.publish(relay, outbox.claim(relay)) == []


NOT_DUE = "SELECT count(*) FROM outbox.deliveries WHERE state = 'PENDING' AND available_at > now()"


def test_an_event_that_kills_its_relay_is_isolated_and_its_mates_are_not_blamed(
    outbox: Outbox,
) -> None:
    relay = outbox.register()
    ids = [str(outbox.emit()) for _ in range(300)]
    killer = ids[123]
    rounds = 0
    while "PENDING" in outbox.states():
        rounds += 1
        assert rounds < 400
        claims = outbox.claim(relay, limit=200, suspects=rounds % 2 == 0)
        if not claims:
            continue
        if killer in [c.event_id for c in claims]:  # the pod dies: nothing is finalised
            outbox.end_leases()
            reap(outbox, relay, retry={"baseDelay": "10ms", "maxDelay": "10ms", "maxCrashes": 3})
            wait_until(lambda: outbox.value(NOT_DUE) == 0, 10, "all are due")
        else:
            outbox.publish(relay, claims)
    assert outbox.states() == {"PUBLISHED": 299, "DEAD": 1}
    dead = outbox.event(killer)
    assert (dead["last_error"]["class"], dead["crashes"]) == ("crash", 5)
    mates = outbox.events("event_id <> %s", killer)
    assert max(m["attempts_in_budget"] for m in mates) == 1


@pytest.mark.parametrize("ordering", ["None", "Key"])
def test_a_claim_is_bounded_in_bytes_and_still_takes_one(outbox: Outbox, ordering: str) -> None:
    relay = outbox.register(ordering=ordering)
    for size in (3_000_000, 3_000_000, 3_000_000, 3_000_000, 20_000_000, 10):
        outbox.emit(payload=b"x" * size, ordering_key="k")
    holder = Holder(outbox, relay) if ordering == "Key" else None
    sizes = []
    for _ in range(3):
        claims = outbox.claim(relay) if holder is None else holder.claim()
        sizes.append([len(c.payload) for c in claims])
        outbox.publish(relay, claims)
    assert sizes == [[3_000_000] * 3, [3_000_000, 20_000_000], [10]]


@pytest.mark.parametrize("ordering", ["None", "Key"])
@pytest.mark.parametrize("late", [False, True])
def test_a_claim_is_bounded_in_bytes_of_headers_too(
    outbox: Outbox, ordering: str, late: bool
) -> None:
    """Also where they shrink to little on disk, and for a relay that registered afterwards."""
    relay = 0 if late else outbox.register(ordering=ordering)
    for _ in range(5):
        outbox.emit(payload=b"x", headers={"a": "x" * 3_000_000}, ordering_key="k")
    if late:
        relay = outbox.register(ordering=ordering)
        outbox.sql("SELECT outbox.route_unmatched(100)")
    holder = Holder(outbox, relay) if ordering == "Key" else None
    sizes = []
    for _ in range(2):
        claims = outbox.claim(relay) if holder is None else holder.claim()
        sizes.append(len(claims))
        outbox.publish(relay, claims)
    assert sizes == [3, 2]

"""Order within a key: s9 of Open Outbox, EM-18, and the hazards that were known beforehand."""

import random
import threading
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import pytest

from dev.services import wait_until
from fixtures.made_settings import relay_settings
from fixtures.outbox import Holder, Outbox
from fixtures.relays import Broker, RunRelay
from outbox_core.model.attempt import Acked, Error, ErrorClass, Refused
from outbox_core.model.event import Claim
from outbox_core.model.lifecycle import Hold, State
from outbox_core.store import relays
from outbox_core.store.connection import connect
from outbox_core.store.deliveries import Wanted
from outbox_core.store.lanes import LANES
from outbox_core.store.tokens import fresh_token
from outbox_relay.worker.reaper import Reaper

pytestmark = pytest.mark.pg


@pytest.fixture
def ordered(outbox: Outbox) -> int:
    return outbox.register(ordering="Key")


def test_em_18_seq_is_commit_order_within_a_key_on_plain_insert(outbox: Outbox) -> None:
    """The second inserter of a key waits for the first to commit and draws its seq afterwards."""
    first, second = outbox.connect(), outbox.connect()
    one = outbox.insert(first, ordering_key="k")
    outbox.insert(first, ordering_key="other")  # its seq is drawn before the second's
    started = threading.Event()
    ids: list[Any] = []

    def insert_second() -> None:
        started.set()
        ids.append(outbox.insert(second, ordering_key="k"))
        second.commit()

    thread = threading.Thread(target=insert_second)
    thread.start()
    started.wait()
    wait_until(
        lambda: outbox.value("SELECT count(*) FROM pg_locks WHERE NOT granted") > 0,
        10,
        "the second insert waits for the first",
    )
    three = outbox.insert(first, ordering_key="k")
    first.commit()
    thread.join()
    order = [r["event_id"] for r in outbox.events("ordering_key = 'k'")]
    assert order == [one, three, ids[0]]
    first.close()
    second.close()


def test_em_18_eight_producers_on_the_same_keys_commit_in_seq_order(outbox: Outbox) -> None:
    outbox.sql("CREATE TABLE witness (key text PRIMARY KEY, n int NOT NULL)")
    outbox.sql("INSERT INTO witness SELECT 'k' || i, 0 FROM generate_series(0, 4) i")

    def produce(number: int) -> None:
        rng = random.Random(number)
        with outbox.connect() as conn:
            for _ in range(60):
                key = f"k{rng.randrange(5)}"
                # The event first, the business row after it: the outbox alone orders them.
                row = conn.execute("SELECT outbox.emit('a.b', '', %s)", (key,)).fetchone()
                assert row is not None
                conn.execute("UPDATE witness SET n = n + 1 WHERE key = %s RETURNING n", (key,))
                conn.execute(
                    "INSERT INTO log SELECT e.seq, w.n, w.key FROM outbox.event e, witness w"
                    " WHERE e.event_id = %s AND w.key = %s",
                    (row[0], key),
                )
                conn.commit()

    outbox.sql("CREATE TABLE log (seq bigint, n int, key text)")
    threads = [threading.Thread(target=produce, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outbox.value("SELECT count(*) FROM log") == 480
    by_commit = outbox.sql("SELECT key, n, seq FROM log ORDER BY key, n")
    by_seq = outbox.sql("SELECT key, n, seq FROM log ORDER BY key, seq")
    assert by_commit == by_seq


def test_ce_29_seqs_of_a_tenant_are_unique_and_ascend(outbox: Outbox) -> None:
    for i in range(50):
        outbox.emit(tenant_id=f"t{i % 2}")
    for tenant in ("t0", "t1"):
        rows = outbox.sql(
            "SELECT seq FROM outbox.event WHERE tenant_id = %s ORDER BY created_at", tenant
        )
        seqs = [seq for (seq,) in rows]
        assert seqs == sorted(set(seqs))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_million_keyed_events_in_one_transaction_fit_default_settings(outbox: Outbox) -> None:
    assert outbox.value("SHOW max_locks_per_transaction") == "64"
    outbox.register(ordering="Key")
    outbox.sql(
        "INSERT INTO outbox.event (event_type, payload, ordering_key)"
        " SELECT 'a.b', '', 'k' || i %% 100000 FROM generate_series(1, 1000000) i"
    )
    assert outbox.value("SELECT count(*) FROM outbox.deliveries") == 1_000_000


def test_bulk_inserts_in_slot_order_do_not_deadlock(outbox: Outbox) -> None:
    def bulk(_: int) -> None:
        with outbox.connect(autocommit=True) as conn:
            for _ in range(5):
                conn.execute(
                    "INSERT INTO outbox.event (event_type, payload, ordering_key)"
                    " SELECT 'a.b', '', k FROM (SELECT 'k' || (random() * 1e9)::int AS k"
                    " FROM generate_series(1, 500)) s ORDER BY outbox.slot_of(k)"
                )

    threads = [threading.Thread(target=bulk, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outbox.value("SELECT count(*) FROM outbox.event") == 6 * 5 * 500


def test_oo_18_a_claim_is_in_seq_order_within_each_key(outbox: Outbox, ordered: int) -> None:
    for i in range(60):
        outbox.emit(ordering_key=f"k{i % 7}")
    claims = Holder(outbox, ordered).claim()
    assert [c.seq for c in claims] == sorted(c.seq for c in claims)
    assert len(claims) == 60


def test_em_18_an_event_of_a_younger_transaction_is_not_left_out_of_a_claim_that_began_before_it(
    outbox: Outbox, ordered: int
) -> None:
    """The relay's transaction is older than the first event's and younger than the second's, and
    looks when both are committed."""
    holder = Holder(outbox, ordered)
    older, younger = outbox.connect(), outbox.connect()
    older.execute("SELECT 1")
    holder.conn.execute("BEGIN")
    holder.conn.execute("SELECT 1")
    first = outbox.insert(younger, ordering_key="k")
    younger.commit()
    second = outbox.insert(older, ordering_key="k")
    older.commit()
    claims = holder.claim()
    holder.conn.execute("COMMIT")
    assert [c.event_id for c in claims] == [str(first), str(second)]


def test_em_34_what_is_in_line_is_due_also_when_the_clock_was_set_back(
    outbox: Outbox, ordered: int
) -> None:
    """To the database its available_at lies in the future then, and its key must not go on."""
    plain = outbox.register("plain")
    ids = [str(outbox.emit(ordering_key="k")) for _ in range(3)]
    outbox.sql("UPDATE outbox.delivery SET available_at = now() + interval '1 h' WHERE seq <> 2")
    assert [c.event_id for c in Holder(outbox, ordered).claim()] == ids
    assert {c.event_id for c in outbox.claim(plain)} == set(ids)
    assert outbox.value("SELECT bool_and(available_at <= claimed_at) FROM outbox.events")


@pytest.mark.parametrize("limit", [1, 3, 5, 100])
def test_em_18_events_whose_time_has_come_do_not_overtake_what_is_still_in_line(
    outbox: Outbox, ordered: int, limit: int
) -> None:
    """The relay was away for longer than the producer's delay."""
    soon = outbox.value("SELECT now() + interval '1 h'")
    for i in range(20):
        outbox.emit(ordering_key="k", available_at=soon if 3 <= i < 9 or i == 15 else None)
    outbox.sql("UPDATE outbox.delivery SET available_at = now() WHERE hold = 'TIME'")
    holder = Holder(outbox, ordered)
    seqs = []
    for _ in range(100):
        if claims := holder.claim(limit=limit):
            seqs += [c.seq for c in claims]
            outbox.publish(ordered, claims)
    assert seqs == sorted(seqs)
    assert len(seqs) == 20


def test_lc_24_oo_10_a_lane_has_one_holder(outbox: Outbox, ordered: int) -> None:
    one, two = Holder(outbox, ordered, 128), Holder(outbox, ordered, 200, "pod-2")
    assert len(one.lanes) + len(two.lanes) == LANES
    assert not set(one.lanes) & set(two.lanes)
    for i in range(100):
        outbox.emit(ordering_key=f"k{i}")
    mine, theirs = one.claim(limit=10), two.claim(limit=1000)
    assert len(mine) == 10
    assert not {c.ordering_key for c in mine} & {c.ordering_key for c in theirs}


def test_oo_39_k2_is_not_claimed_while_k1_waits_for_its_retry(outbox: Outbox, ordered: int) -> None:
    holder = Holder(outbox, ordered)
    outbox.emit(ordering_key="k")
    outbox.fail(ordered, holder.claim(), delay=3600)
    outbox.emit(ordering_key="k")
    other = outbox.emit(ordering_key="other")
    assert [c.event_id for c in holder.claim()] == [str(other)]


def test_oo_39_k2_is_not_claimed_while_k1_is_scheduled_for_later(
    outbox: Outbox, ordered: int
) -> None:
    holder = Holder(outbox, ordered)
    first = outbox.emit(
        ordering_key="k", available_at=outbox.value("SELECT now() + interval '500 ms'")
    )
    second = outbox.emit(ordering_key="k")
    assert holder.claim() == []
    claims = wait_until(holder.claim, 10, "the first is due")
    assert [c.event_id for c in claims] == [str(first)]
    outbox.publish(ordered, claims)
    assert [c.event_id for c in holder.claim()] == [str(second)]


def test_oo_40_what_waits_behind_a_key_is_not_stepped_over_again_and_again(
    outbox: Outbox, ordered: int
) -> None:
    holder = Holder(outbox, ordered)
    outbox.emit(ordering_key="stuck")
    outbox.fail(ordered, holder.claim(), delay=3600)
    for _ in range(300):
        outbox.emit(ordering_key="stuck")
    assert holder.claim() == []
    assert outbox.value("SELECT count(*) FROM outbox.deliveries WHERE hold = 'KEY'") == 300
    free = [str(outbox.emit(ordering_key=f"free{i}")) for i in range(20)]
    assert sorted(c.event_id for c in holder.claim()) == sorted(free)


def test_oo_43_after_the_retry_the_key_goes_on_in_order(outbox: Outbox, ordered: int) -> None:
    holder = Holder(outbox, ordered)
    ids = [str(outbox.emit(ordering_key="k")) for _ in range(50)]
    outbox.fail(ordered, holder.claim(limit=1), delay=0.2)
    assert holder.claim() == []
    sent: list[str] = []

    def one_round() -> bool:
        claims = holder.claim()
        if claims:
            sent.extend(c.event_id for c in claims)
            outbox.publish(ordered, claims)
        return len(sent) == 50

    wait_until(one_round, 10, "the whole key is sent")
    assert sent == ids


@pytest.mark.parametrize("policy", ["Block", "Continue"])
def test_oo_44_a_dead_event_holds_its_key_or_not_as_configured(
    outbox: Outbox, ordered: int, policy: str
) -> None:
    holder = Holder(outbox, ordered)
    outbox.emit(ordering_key="k")
    hold = Hold.DEAD if policy == "Block" else Hold.NONE
    outbox.fail(ordered, holder.claim(), State.DEAD, hold=hold)
    second = outbox.emit(ordering_key="k")
    expected = [] if policy == "Block" else [str(second)]
    assert [c.event_id for c in holder.claim()] == expected


def test_oo_37_events_without_a_key_never_wait(outbox: Outbox, ordered: int) -> None:
    holder = Holder(outbox, ordered)
    outbox.emit()
    outbox.fail(ordered, holder.claim(), delay=3600)
    second = outbox.emit()
    assert [c.event_id for c in holder.claim()] == [str(second)]


def test_oo_38_without_ordering_keys_mean_nothing(outbox: Outbox) -> None:
    relay = outbox.register()
    outbox.emit(ordering_key="k")
    outbox.fail(relay, outbox.claim(relay), delay=3600)
    second = outbox.emit(ordering_key="k")
    assert [c.event_id for c in outbox.claim(relay)] == [str(second)]


def test_oo_41_a_holder_that_stopped_answering_loses_everything_at_once(
    outbox: Outbox, ordered: int
) -> None:
    dead = Holder(outbox, ordered)
    ids = [str(outbox.emit(ordering_key="k")) for _ in range(5)]
    claimed = dead.claim(limit=3)
    heir = Holder(outbox, ordered, owner="pod-2")
    assert heir.lanes == []
    dead.expire()
    report = Reaper(outbox.conn, ordered, relay_settings(ordering="Key")).reap()
    assert report.reaped == 3
    assert dead.claim() == []  # its holder row is gone: nothing is claimed from lost lanes
    assert outbox.publish(ordered, claimed) == [c.seq for c in claimed]
    heir.lanes = heir.lanes_of_relay.acquire(heir.token, LANES)
    assert len(heir.lanes) == LANES
    sent: list[str] = []
    for turn in range(20):
        if claims := heir.claim(suspects=turn % 2 == 0):
            sent.extend(c.event_id for c in claims)
            outbox.publish(ordered, claims)
    assert sent == ids


def test_oo_53_replayed_events_come_in_seq_order_before_later_ones(
    outbox: Outbox, ordered: int
) -> None:
    holder = Holder(outbox, ordered)
    ids = [str(outbox.emit(ordering_key="k")) for _ in range(4)]
    outbox.publish(ordered, holder.claim())
    later = str(outbox.emit(ordering_key="k"))
    outbox.unpack()
    outbox.sql(
        "UPDATE outbox.delivery SET state = 'PENDING', hold = 'TIME', available_at = now(),"
        " previous_published_at = published_at, published_at = NULL WHERE state = 'PUBLISHED'"
    )
    assert [c.event_id for c in holder.claim()] == [*ids, later]


def test_switching_the_order_on_and_off_keeps_every_event(outbox: Outbox) -> None:
    relay = outbox.register()
    for i in range(40):
        outbox.emit(ordering_key=f"k{i % 4}" if i % 2 else None)
    outbox.register(ordering="Key")
    holder = Holder(outbox, relay)
    half = holder.claim(limit=20)
    outbox.publish(relay, half)
    outbox.register(ordering="None")
    rest = outbox.claim(relay)
    assert len(half) + len(rest) == 40
    assert outbox.publish(relay, rest) == []


def test_switching_the_order_may_take_long_and_is_logged(
    outbox: Outbox, caplog: pytest.LogCaptureFixture
) -> None:
    """With a large backlog that is longer than any statement may otherwise take."""
    relay = outbox.register()
    outbox.emit(ordering_key="k")
    found: list[int] = []
    blocker = outbox.connect()
    blocker.execute("SELECT 1 FROM outbox.delivery FOR UPDATE")

    def register() -> None:
        with connect(outbox.dsn, "test", statement_timeout=0.2) as conn:
            found.append(relays.register(conn, relay_settings(name="relay", ordering="Key")).id)
            (timeout,) = conn.execute("SHOW statement_timeout").fetchone() or ("",)
            assert timeout == "200ms"

    with caplog.at_level("INFO"):
        thread = threading.Thread(target=register)
        thread.start()
        thread.join(1)
        assert thread.is_alive()
        blocker.commit()
        thread.join(20)
    assert found == [relay]
    assert "from None to Key" in caplog.text
    assert outbox.value("SELECT lane >= 0 FROM outbox.deliveries")


def test_what_came_in_during_a_switch_changes_lanes_in_steps(outbox: Outbox) -> None:
    relay = outbox.register()
    for _ in range(5):
        outbox.emit(ordering_key="k")
    outbox.sql("UPDATE outbox.relay SET ordering = 'Key'")
    deliveries = outbox.deliveries(relay)
    assert [deliveries.relane(2) for _ in range(4)] == [2, 2, 1, 0]
    assert outbox.value("SELECT bool_and(lane >= 0) FROM outbox.deliveries")


def test_a_lane_with_claims_of_an_unordered_past_is_not_given_out(outbox: Outbox) -> None:
    relay = outbox.register()
    outbox.emit(ordering_key="k")
    claims = outbox.claim(relay)
    outbox.register(ordering="Key")
    holder = Holder(outbox, relay)
    assert len(holder.lanes) == LANES - 1
    outbox.publish(relay, claims)
    assert len(holder.lanes_of_relay.acquire(holder.token, LANES)) == 1


@pytest.mark.parametrize("gapless", [True, False])
def test_oo_39_em_18_in_a_batch_nothing_overtakes_a_failure(
    outbox: Outbox, run_relay: RunRelay, gapless: bool
) -> None:
    """k2 must not arrive where k1 of the same batch failed, with a publisher that promises
    nothing and with one that stops at the gap."""
    arrived: dict[str, list[int]] = defaultdict(list)
    lock = threading.Lock()

    class Fickle(Broker):
        def publish(self, batch: Sequence[Claim]) -> list[Any]:
            answers: list[Any] = []
            broken: set[str] = set()
            for claim in batch:
                key = str(claim.ordering_key)
                fails = claim.attempts < 1 + (claim.seq % 4 == 0) or (gapless and key in broken)
                if fails:
                    broken.add(key)
                    answers.append(Refused(Error.of(ErrorClass.TRANSIENT, "X", "no")))
                else:
                    with lock:
                        arrived[key].append(claim.seq)
                    answers.append(Acked("t[0]@1"))
            return answers

    broker = Fickle()
    broker.gapless = gapless
    outbox.register(ordering="Key")
    for i in range(400):
        outbox.emit(ordering_key=f"k{i % 10}")
    run_relay(
        outbox.dsn, broker, ordering="Key", batchSize=50,
        retry={"baseDelay": "10ms", "maxDelay": "20ms"},
    )  # fmt: skip
    wait_until(lambda: outbox.states() == {"PUBLISHED": 400}, 60, "all published")
    for key, seqs in arrived.items():
        assert seqs == sorted(seqs), key


def test_oo_44_the_worker_blocks_the_key_of_a_dead_event(
    outbox: Outbox, run_relay: RunRelay
) -> None:
    broker = Broker()
    outbox.register(ordering="Key")
    poison = str(outbox.emit(ordering_key="k"))
    behind = [outbox.emit(ordering_key="k") for _ in range(3)]
    other = outbox.emit(ordering_key="other")
    broker.answer = lambda c: (
        Refused(Error.of(ErrorClass.EVENT, "TOO_LARGE", "too large"))
        if c.event_id == poison
        else Acked("t[0]@1")
    )
    run_relay(outbox.dsn, broker, ordering="Key")
    wait_until(lambda: outbox.event(other)["state"] == "PUBLISHED", 20, "other keys go on")
    wait_until(lambda: outbox.event(poison)["state"] == "DEAD", 20, "the poison is dead")
    wait_until(lambda: all(outbox.event(b)["hold"] == "KEY" for b in behind), 20, "the key waits")
    assert outbox.event(poison)["hold"] == "DEAD"


@pytest.mark.parametrize(("before", "after"), [("None", "Key"), ("Key", "None")])
def test_lc_39_an_insert_that_races_with_a_change_of_ordering_is_not_stranded(
    outbox: Outbox, run_relay: RunRelay, before: str, after: str
) -> None:
    outbox.register(ordering=before)
    with outbox.connect() as slow:
        late = outbox.insert(slow, ordering_key="k")
        outbox.register(ordering=after)
        run_relay(outbox.dsn, Broker(), ordering=after, lease="1.2s")
        probe = outbox.emit(ordering_key="other")
        wait_until(lambda: outbox.event(probe)["state"] == "PUBLISHED", 20, "the relay works")
        slow.commit()
    wait_until(lambda: outbox.event(late)["state"] == "PUBLISHED", 20, "the late one too")


def test_em_18_an_event_from_before_the_registration_is_not_overtaken(outbox: Outbox) -> None:
    """k1 is inserted before anybody wants it and committed after; k2 comes when somebody does."""
    with outbox.connect() as slow:
        first = outbox.insert(slow, ordering_key="k")
        relay = outbox.register(ordering="Key")
        holder = Holder(outbox, relay)
        slow.commit()
    second = outbox.insert(ordering_key="k")
    sent: list[str] = []
    for _ in range(6):
        if claims := holder.claim():
            sent.extend(c.event_id for c in claims)
            outbox.publish(relay, claims)
    assert sent == [str(first), str(second)]


def test_em_18_what_nobody_wants_holds_up_no_relay_that_was_asked_before(
    outbox: Outbox,
) -> None:
    """Another relay registers: only it may want what nobody wanted."""
    relay = outbox.register(event_types=["a.*"], ordering="Key")
    holder = Holder(outbox, relay)
    for _ in range(20):
        outbox.insert(event_type="b.c", ordering_key="k")
    outbox.register("other", event_types=["c.*"])
    wanted = outbox.insert(event_type="a.b", ordering_key="k")
    assert [c.event_id for c in holder.claim(limit=5)] == [str(wanted)]


def recovered(holder: Holder) -> int:
    """As a worker does when its connection was lost: how many claims were given back."""
    fresh = fresh_token()
    assert holder.lanes_of_relay.fence(holder.token, fresh)
    holder.token = fresh
    deliveries = holder.outbox.deliveries(holder.relay, conn=holder.conn)
    return deliveries.recover(holder.claim_token)


def test_oo_41_a_claim_whose_answer_was_lost_is_given_back_before_the_key_goes_on(
    outbox: Outbox, ordered: int
) -> None:
    holder = Holder(outbox, ordered)
    first = str(outbox.emit(ordering_key="k"))
    assert [c.event_id for c in holder.claim()] == [first]  # and nobody hears of it
    second = str(outbox.emit(ordering_key="k"))
    assert recovered(holder) == 1
    assert [c.event_id for c in holder.claim()] == [first, second]
    assert outbox.event(first)["attempts_in_budget"] == 1


def test_oo_41_a_claim_that_is_still_being_committed_is_waited_for(
    outbox: Outbox, ordered: int
) -> None:
    """The connection is gone, and the backend has not noticed."""
    holder = Holder(outbox, ordered)
    first = str(outbox.emit(ordering_key="k"))
    lost = holder.conn
    lost.execute("BEGIN")
    assert [c.event_id for c in holder.claim()] == [first]
    second = str(outbox.emit(ordering_key="k"))
    holder.reconnect()
    given_back: list[int] = []
    thread = threading.Thread(target=lambda: given_back.append(recovered(holder)))
    thread.start()
    wait_until(
        lambda: given_back or outbox.value("SELECT count(*) FROM pg_locks WHERE NOT granted") > 0,
        10,
        "the recovery waits",
    )
    assert given_back == []
    lost.execute("COMMIT")
    thread.join()
    assert given_back == [1]
    assert [c.event_id for c in holder.claim()] == [first, second]


def test_oo_41_a_claim_that_comes_after_its_recovery_takes_nothing(
    outbox: Outbox, ordered: int
) -> None:
    """The server had received it and was busy with what came before."""
    holder = Holder(outbox, ordered)
    first = str(outbox.emit(ordering_key="k"))
    lost = holder.conn
    late = Wanted(fresh_token(), 10, holder.lanes, floor=0, lane_limit=10)
    old_token, holder.claim_token = holder.token, late.token
    holder.reconnect()
    assert recovered(holder) == 0
    assert outbox.deliveries(ordered, conn=lost).turn(None, late, old_token).claims == []
    assert [c.event_id for c in holder.claim()] == [first]


def test_oo_41_who_was_taken_over_has_nothing_to_recover(outbox: Outbox, ordered: int) -> None:
    holder = Holder(outbox, ordered)
    holder.expire()
    Reaper(outbox.conn, ordered, relay_settings(ordering="Key")).reap()
    assert not holder.lanes_of_relay.fence(holder.token, fresh_token())
    assert outbox.value("SELECT count(*) FROM outbox.lane WHERE token IS NOT NULL") == 0


def test_oo_41_what_another_holder_has_is_not_given_back(outbox: Outbox, ordered: int) -> None:
    holder = Holder(outbox, ordered)
    outbox.emit(ordering_key="k")
    assert len(holder.claim()) == 1
    holder.expire()
    Reaper(outbox.conn, ordered, relay_settings(ordering="Key")).reap()
    heir = Holder(outbox, ordered, owner="pod-2")
    assert len(heir.claim(suspects=True)) == 1
    deliveries = outbox.deliveries(ordered, conn=holder.conn)
    assert deliveries.recover(holder.claim_token) == 0
    assert outbox.states() == {"CLAIMED": 1}

"""Replay: s10 of Open Outbox and what 000, 001, 002 and 004 require, for many events at once."""

import threading
from collections import defaultdict
from datetime import timedelta
from typing import Any

import pytest

from dev.services import wait_until
from fixtures.bulk import Bulk, Witness, emit_many, end_all, replay_settings
from fixtures.outbox import Holder, Outbox
from fixtures.relays import Broker, RunRelay
from outbox_core.model.attempt import Acked, Error, ErrorClass, Refused
from outbox_core.model.event import Claim
from outbox_core.model.lifecycle import Hold, State
from outbox_core.store import replays
from outbox_core.store.deliveries import UNORDERED
from outbox_core.store.intervene.interventions import Interventions

pytestmark = pytest.mark.pg

PUBLISHED = {"states": ["PUBLISHED"], "eventTypes": ["*"]}


def by_key(claims: list[Claim]) -> dict[str | None, list[int]]:
    keys: dict[str | None, list[int]] = defaultdict(list)
    for claim in claims:
        keys[claim.ordering_key].append(claim.seq)
    return keys


@pytest.mark.parametrize("state", ["DEAD", "PUBLISHED"])
def test_lc_19_oo_51_what_was_terminal_is_published_again(
    outbox: Outbox, run_relay: RunRelay, state: str
) -> None:
    relay = outbox.register()
    emit_many(outbox, 120)
    end_all(outbox, relay, state)
    bulk = Bulk(outbox, select={"states": [state], "eventTypes": ["*"]})
    bulk.run()
    rows = outbox.events()
    assert {(r["state"], r["published_at"], r["replay_id"]) for r in rows} == {
        ("PENDING", None, bulk.id)
    }
    now = outbox.value("SELECT now()")
    assert all(r["available_at"] <= now for r in rows)
    broker = Broker()
    run_relay(outbox.dsn, broker)
    wait_until(lambda: outbox.states() == {"PUBLISHED": 120}, 20, "all published again")
    assert sorted(c.seq for c in broker.accepted) == list(range(1, 121))


def test_lc_20_tc_28_ce_19_a_replay_is_a_new_life_with_or_without_a_fresh_budget(
    outbox: Outbox,
) -> None:
    relay = outbox.register()
    event = outbox.emit(max_attempts=2)
    outbox.fail(relay, outbox.claim(relay), text="no topic")
    outbox.fail(relay, outbox.claim(relay), State.DEAD, text="no topic")
    Bulk(outbox, "kept", resetAttempts=False).run()
    row = outbox.event(event)
    assert (row["attempts_in_budget"], row["last_error"]["text"]) == (2, "no topic")
    outbox.fail(relay, outbox.claim(relay), State.DEAD)
    Bulk(outbox, "fresh").run()
    row = outbox.event(event)
    assert (row["attempts"], row["attempts_in_budget"], row["last_error"]) == (3, 0, None)
    assert (row["replay_id"], row["crashes"]) == ("fresh", 0)
    (claim,) = outbox.claim(relay)  # due at once
    assert (claim.attempts, claim.spent) == (4, 1)


def test_em_28_em_43_attempts_never_fall_and_no_publication_is_forgotten(outbox: Outbox) -> None:
    relay = outbox.register()
    event = outbox.emit()
    attempts, publications = [], []
    for turn in range(3):
        outbox.publish(relay, outbox.claim(relay))
        publications.append(outbox.event(event)["published_at"])
        Bulk(outbox, f"turn-{turn}", select=PUBLISHED).run()
        row = outbox.event(event)
        attempts.append(row["attempts"])
        assert row["previous_published_at"] == publications[-1]
    assert attempts == [1, 2, 3]
    assert publications == sorted(set(publications))


def test_oo_52_what_is_in_flight_is_skipped_and_counted(outbox: Outbox) -> None:
    relay = outbox.register()
    emit_many(outbox, 10)
    end_all(outbox, relay, "DEAD")
    first, second = Bulk(outbox, "first"), Bulk(outbox, "second")
    first.run()
    claims = outbox.claim(relay, 4)
    before = outbox.events()
    assert second.run()[:4] == (10, 0, 10, {"Claimed": 4, "Pending": 6})
    assert outbox.events() == before
    assert outbox.publish(relay, claims) == []  # nobody took them away


def test_oo_53_a_key_comes_back_in_seq_order_and_before_what_waits_behind_it(
    outbox: Outbox,
) -> None:
    relay = outbox.register(ordering="Key")
    holder = Holder(outbox, relay)
    emit_many(outbox, 300, keys=3)
    claims = holder.claim()
    outbox.fail(relay, claims[:150], State.DEAD, hold=Hold.NONE)
    outbox.publish(relay, claims[150:])
    emit_many(outbox, 30, keys=3)  # these wait
    Bulk(outbox).run(takers=3)
    sent: list[Claim] = []
    while batch := holder.claim(limit=40):
        outbox.publish(relay, batch)
        sent += batch
    for seqs in by_key(sent).values():
        assert seqs == sorted(seqs)
        assert len(seqs) == 60
    assert {c.seq for c in sent} == {*range(1, 151), *range(301, 331)}


@pytest.mark.parametrize("ordering", ["None", "Key"])
def test_oo_54_a_chunk_that_is_done_twice_comes_back_once(outbox: Outbox, ordering: str) -> None:
    """A state guard alone would bring back again what was published meanwhile."""
    relay = outbox.register(ordering=ordering)
    emit_many(outbox, 400, keys=5)
    end_all(outbox, relay)
    witness = Witness(outbox)
    bulk = Bulk(outbox, select=PUBLISHED)
    with outbox.connect() as lost:
        replays.take(lost, bulk.id, "lost")
        lost.rollback()  # the task died, and its twin does it again
    while bulk.take().outcome != "done":
        end_all(outbox, relay)
    for _ in range(3):  # and so do tasks that come too late
        assert bulk.take().outcome == "done"
    assert sorted(witness.seqs(bulk.id)) == list(range(1, 401))


def test_oo_54_oo_60_by_default_only_the_dead_come_back(outbox: Outbox) -> None:
    relay = outbox.register()
    emit_many(outbox, 10)
    end_all(outbox, relay)
    emit_many(outbox, 5)
    end_all(outbox, relay, "DEAD")
    Bulk(outbox).run()
    assert outbox.states() == {"PUBLISHED": 10, "PENDING": 5}


def test_oo_58_a_replay_that_ends_midway_loses_nothing(outbox: Outbox, run_relay: RunRelay) -> None:
    relay = outbox.register()
    emit_many(outbox, 400)
    end_all(outbox, relay, "DEAD")
    bulk = Bulk(outbox)
    for _ in range(3):
        bulk.take()
    replays.stop(outbox.conn, bulk.id)
    assert outbox.states() == {"PENDING": 150, "DEAD": 250}
    broker = Broker()
    run_relay(outbox.dsn, broker)
    wait_until(lambda: outbox.states() == {"PUBLISHED": 150, "DEAD": 250}, 20, "what came back")
    Bulk(outbox).run()  # it goes on
    wait_until(lambda: outbox.states() == {"PUBLISHED": 400}, 20, "the rest")
    assert sorted(c.seq for c in broker.accepted) == list(range(1, 401))


def test_oo_59_a_dry_run_warns_of_duplicates_and_of_order(outbox: Outbox) -> None:
    relay = outbox.register(ordering="Key")
    emit_many(outbox, 30, keys=3)
    end_all(outbox, relay)
    some = {"states": ["PUBLISHED"], "orderingKeys": ["k1", "k2"]}
    matched, found = replays.preview(outbox.conn, replay_settings(select=some, dryRun=True))
    duplicates, order = found.warnings
    assert (matched, found.keys) == (20, 2)
    assert "20 were published before, consumers get them again" in duplicates
    assert "2 of 2 keys have later events" in order


def test_oo_60_a_replay_is_selected_by_state_and_time(outbox: Outbox) -> None:
    relay = outbox.register()
    for state in ("DEAD", "PUBLISHED"):
        for _ in range(3):
            outbox.emit(state)
            end_all(outbox, relay, state)
    times: dict[str, list[Any]] = defaultdict(list)
    for row in outbox.events():
        times[row["state"]].append(row["created_at"])
    window = {"after": times["DEAD"][1].isoformat(), "before": times["PUBLISHED"][1].isoformat()}
    both = {"states": ["DEAD", "PUBLISHED"], "created": window}
    assert Bulk(outbox, select=both).run().replayed == 3
    assert [r["state"] for r in outbox.events()] == [
        *("DEAD", "PENDING", "PENDING"),
        *("PENDING", "PUBLISHED", "PUBLISHED"),
    ]


@pytest.mark.parametrize("way", ["requeue", "backfill", "replay", "retry", "live"])
def test_ek_19_what_a_person_brings_back_is_as_old_as_that(
    outbox: Outbox, run_relay: RunRelay, way: str
) -> None:
    """A relay that gives up what is older than 12 h, and an event of yesterday."""
    outbox.register("other")
    relay = 0 if way == "backfill" else outbox.register("relay", ordering="Key")
    event = outbox.emit(ordering_key="k")
    if relay and way in ("requeue", "replay"):
        end_all(outbox, relay)
    outbox.sql("ALTER TABLE outbox.event DISABLE TRIGGER event_is_immutable")
    outbox.sql("UPDATE outbox.event SET created_at = created_at - interval '1 day'")
    by_hand = Interventions(outbox.conn, "ann", "they lost it")
    match way:
        case "requeue":
            Bulk(outbox, select=PUBLISHED).run()
        case "backfill":
            relay = outbox.register("relay", ordering="Key")
            Bulk(outbox, action="Backfill").run()
        case "replay":
            by_hand.replay([event], "relay")
        case "retry":
            by_hand.reschedule([event], delay=timedelta(hours=1), relay="relay")
            by_hand.retry([event], "relay")
    broker = Broker()
    not_now = Refused(Error.of(ErrorClass.TRANSIENT, "X", "not now"))
    broker.answer = lambda claim: not_now if claim.spent == 1 else Acked(f"t[0]@{claim.seq}")
    retry = {"maxAge": "12h", "baseDelay": "10ms"}
    run_relay(outbox.dsn, broker, ordering="Key", onDead="Block", retry=retry)
    wait_until(lambda: outbox.event(event, "relay")["state"] in ("PUBLISHED", "DEAD"), 20, "over")
    row = outbox.event(event, "relay")
    if way == "live":
        assert (row["state"], row["last_error"]["class"]) == ("DEAD", "expired")
    else:
        assert (row["state"], len(broker.accepted)) == ("PUBLISHED", 1)


def test_ek_19_what_came_back_gets_too_old_too(outbox: Outbox) -> None:
    relay = outbox.register()
    event = outbox.emit()
    end_all(outbox, relay)
    Bulk(outbox, select=PUBLISHED).run()
    deliveries = outbox.deliveries(relay)

    def expired(max_age: timedelta) -> list[str]:
        with outbox.conn.transaction():
            return deliveries.expire(max_age, UNORDERED, 100, 0, block=False)

    assert expired(timedelta(minutes=1)) == []
    outbox.sql("UPDATE outbox.delivery SET age_from = age_from - interval '2 min'")
    assert expired(timedelta(minutes=1)) == [str(event)]
    assert outbox.event(event)["state"] == "DEAD"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_oo_61_many_hands_and_live_traffic_keep_the_order_of_every_key(
    outbox: Outbox, run_relay: RunRelay
) -> None:
    relay = outbox.register(ordering="Key")
    emit_many(outbox, 6000, keys=40)
    end_all(outbox, relay)
    broker = Broker()
    for pod in ("pod-1", "pod-2"):
        run_relay(outbox.dsn, broker, pod=pod, ordering="Key", batchSize=100, lease="60s")
    done = threading.Event()
    live: list[int] = []

    def produce() -> None:
        with outbox.connect(autocommit=True) as conn:
            while not done.wait(0.01):
                rows = conn.execute(
                    "INSERT INTO outbox.event (event_type, payload, ordering_key)"
                    " SELECT 'live', '', 'k' || i FROM generate_series(0, 9) i RETURNING seq"
                ).fetchall()
                live.extend(seq for (seq,) in rows)

    producer = threading.Thread(target=produce)
    producer.start()
    try:
        bulk = Bulk(outbox, select=PUBLISHED | {"eventTypes": ["order.*"]}, pace=5000)
        assert bulk.run(takers=3)[:4] == (6000, 6000, 0, {})
    finally:
        done.set()
        producer.join()
    total = 6000 + len(live)
    wait_until(lambda: outbox.states() == {"PUBLISHED": total}, 120, "everything is out")
    accepted = broker.accepted
    assert sorted(c.seq for c in accepted) == [*range(1, 6001), *sorted(live)]
    for kind in ("order.created", "live"):
        for seqs in by_key([c for c in accepted if c.event_type == kind]).values():
            assert seqs == sorted(seqs)


def test_ce_30_two_replays_of_the_same_go_out_in_the_same_order(outbox: Outbox) -> None:
    relay = outbox.register(ordering="Key")
    holder = Holder(outbox, relay)
    emit_many(outbox, 500, keys=7)
    end_all(outbox, relay)
    orders = []
    for turn in range(2):
        Bulk(outbox, f"turn-{turn}", select=PUBLISHED).run(takers=4 - 3 * turn)
        sent: list[Claim] = []
        while batch := holder.claim(limit=33):
            outbox.publish(relay, batch)
            sent += batch
        orders.append(by_key(sent))
    assert orders[0] == orders[1]
    assert all(seqs == sorted(seqs) for seqs in orders[0].values())


def test_lc_28_a_terminal_delivery_comes_back_by_a_replay_alone(outbox: Outbox) -> None:
    """Whatever else the schema offers leaves it as it is; the two that bring back name a replay."""
    relay = outbox.register()
    emit_many(outbox, 2)
    end_all(outbox, relay)
    sources = outbox.sql(
        "SELECT p.proname, p.prosrc FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace"
        " WHERE n.nspname = 'outbox' AND p.prosrc ~ 'published_at = NULL'"
    )
    assert [name for name, _ in sources] == ["requeue"]
    assert "replay_id = job.id" in sources[0][1]
    before = outbox.events()
    outbox.sql("SELECT outbox.relane(%s)", relay)
    outbox.sql("SELECT outbox.route_unmatched()")
    assert outbox.claim(relay, suspects=True) == []
    assert outbox.events() == before

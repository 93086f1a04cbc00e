"""
Real processes, a real database, a real broker, and everything that goes wrong between them.

In each: nothing committed is lost, nothing is DEAD, order within a key is kept where it was asked
for, and duplicates stay within what was in flight at the fault.
"""

import random
import signal
import threading
import time
from collections.abc import Sequence
from typing import Any

import psycopg
import pytest

from dev.services import Kafka, Postgres, scratch, wait_until
from fixtures.outbox import Outbox
from fixtures.relays import StartRelay
from fixtures.topics import Consume, MakeTopic, Message

pytestmark = [pytest.mark.pg, pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(240)]

FAST: dict[str, Any] = {
    "lease": "3s",
    "batchSize": 100,
    "retry": {"baseDelay": "50ms", "maxDelay": "500ms"},
}
KAFKA: dict[str, Any] = {"deliveryTimeout": "2s"}


def load(outbox: Outbox, count: int, keys: int) -> None:
    """Their payloads are numbers, which go on where the last ones ended."""
    first = outbox.value("SELECT count(*) FROM outbox.event") + 1
    outbox.sql(
        "INSERT INTO outbox.event (event_type, payload, ordering_key)"
        " SELECT 'order.created', convert_to(i::text, 'UTF8'), 'k' || i %% %s"
        " FROM generate_series(%s::bigint, %s::bigint) i",
        keys,
        first,
        first + count - 1,
    )


def ids_of(messages: Sequence[Message]) -> list[str]:
    return [
        str(dict(m.headers)["outbox-event-id"], "ascii")  # type: ignore[arg-type]
        for m in messages
    ]


def assert_all_there(
    outbox: Outbox, messages: Sequence[Message], duplicates: int, ordered: bool
) -> None:
    sent = ids_of(messages)
    stored = {str(i) for (i,) in outbox.sql("SELECT event_id FROM outbox.event")}
    assert set(sent) == stored, (
        f"{len(stored - set(sent))} lost, {len(set(sent) - stored)} invented"
    )
    assert len(sent) - len(stored) <= duplicates
    assert set(outbox.states()) == {"PUBLISHED"}
    if ordered:
        first: dict[bytes, list[int]] = {}
        for message in messages:  # one partition per key: the log's order is the arrival's
            assert message.key is not None
            assert message.value is not None
            number = int(message.value)
            seen = first.setdefault(message.key, [])
            if number not in seen:
                seen.append(number)
        for key, numbers in first.items():
            assert numbers == sorted(numbers), key


def all_published(outbox: Outbox, timeout: float = 90) -> None:
    wait_until(
        lambda: (
            outbox.value("SELECT count(*) FROM outbox.deliveries WHERE state <> 'PUBLISHED'") == 0
        ),
        timeout,
        "all published",
    )


@pytest.fixture(params=["None", "Key"])
def ordering(request: pytest.FixtureRequest) -> str:
    return str(request.param)


KILLED_EVENTS = 30_000
"""Enough that relays are at work until the last of them is killed."""


def test_em_18_lc_34_lc_35_lc_38_killed_at_any_moment_loses_nothing(
    outbox: Outbox, topic: str, start_relay: StartRelay, consume: Consume, ordering: str
) -> None:
    settings = {**FAST, "ordering": ordering, "kafka": {**KAFKA, "topic": topic}}
    outbox.register(ordering=ordering)
    load(outbox, KILLED_EVENTS, 50)
    pods = [start_relay(outbox.dsn, f"pod-{n}", **settings) for n in range(3)]
    kills = 0
    deadline = time.monotonic() + 100
    while "PENDING" in outbox.states() or "CLAIMED" in outbox.states():
        assert time.monotonic() < deadline, outbox.states()
        if kills < 6:
            busy = [p for p in pods if p.running]
            wait_until(
                lambda: outbox.value(
                    "SELECT count(*) FROM outbox.deliveries WHERE state = 'CLAIMED'"
                ),
                30,
                "somebody has claims",
            )
            busy[kills % len(busy)].kill()
            kills += 1
            pods.append(start_relay(outbox.dsn, f"heir-{kills}", **settings))
        else:
            time.sleep(0.1)
    messages = consume(topic, KILLED_EVENTS)
    assert kills == 6
    assert_all_there(outbox, messages, duplicates=kills * 2 * 100, ordered=ordering == "Key")


class Producers:
    """Eight at once, on the same keys, with short transactions and long ones."""

    def __init__(self, outbox: Outbox) -> None:
        outbox.sql("CREATE TABLE witness (key text PRIMARY KEY, n int NOT NULL DEFAULT 0)")
        outbox.sql("INSERT INTO witness (key) SELECT 'k' || n FROM generate_series(1, 12) n")
        # The order of their locks: so nobody deadlocks.
        rows = outbox.sql("SELECT key FROM witness ORDER BY outbox.slot_of(key)")
        self._keys = [str(key) for (key,) in rows]
        self._dsn = outbox.dsn
        self._enough = threading.Event()
        self._committed: list[tuple[str, int, str]] = []
        self._threads = [threading.Thread(target=self._run, args=(n,)) for n in range(8)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> dict[str, list[str]]:
        """The ids of each key's events, in the order in which they were committed."""
        self._enough.set()
        for thread in self._threads:
            thread.join()
        found: dict[str, list[str]] = {}
        for key, _, event_id in sorted(self._committed):
            found.setdefault(key, []).append(event_id)
        return found

    def _run(self, number: int) -> None:
        rng = random.Random(number)
        with psycopg.connect(self._dsn) as conn:
            while not self._enough.is_set():
                conn.execute("SELECT 1")  # the transaction begins, and with it its time
                time.sleep(rng.choice((0, 0, 0.01, 0.1)))
                chosen = rng.sample(self._keys, rng.choice((1, 1, 2, 4)))
                sent: list[tuple[str, int, str]] = []
                for key in sorted(chosen, key=self._keys.index):
                    # The event first, the business row after it: the outbox alone orders them.
                    row = conn.execute("SELECT outbox.emit('a.b', 'x', %s)", (key,)).fetchone()
                    turn = conn.execute(
                        "UPDATE witness SET n = n + 1 WHERE key = %s RETURNING n", (key,)
                    ).fetchone()
                    assert row is not None
                    assert turn is not None
                    sent.append((key, turn[0], str(row[0])))
                if rng.random() < 0.1:
                    time.sleep(rng.random() * 0.2)
                conn.commit()
                self._committed += sent


def test_em_18_producers_on_the_same_keys_and_relays_that_are_killed_keep_the_commits_order(
    outbox: Outbox, topic: str, start_relay: StartRelay, consume: Consume
) -> None:
    settings = {**FAST, "ordering": "Key", "kafka": {**KAFKA, "topic": topic}}
    outbox.register(ordering="Key")
    pods = [start_relay(outbox.dsn, f"pod-{n}", **settings) for n in range(4)]
    wait_until(lambda: all(p.happened("started") for p in pods), 60, "four relays work")
    producers = Producers(outbox)
    kills = 4
    try:
        for n in range(kills):
            before = outbox.value("SELECT count(*) FROM outbox.event")
            wait_until(
                lambda before=before: (  # type: ignore[misc]
                    outbox.value("SELECT count(*) FROM outbox.event") > before + 150
                    and outbox.value(
                        "SELECT count(*) FROM outbox.deliveries WHERE state = 'CLAIMED'"
                    )
                ),
                30,
                "somebody has claims",
            )
            pods[n].kill()
            pods.append(start_relay(outbox.dsn, f"heir-{n}", **settings))
    finally:
        committed = producers.stop()
    all_published(outbox)
    messages = consume(topic, sum(map(len, committed.values())))
    arrived: dict[str, list[str]] = {}
    for message, event_id in zip(messages, ids_of(messages), strict=True):
        seen = arrived.setdefault(str(message.key or b"", "ascii"), [])
        if event_id not in seen:
            seen.append(event_id)
    assert arrived == committed
    assert len(messages) - sum(map(len, committed.values())) <= kills * 2 * 100


@pytest.mark.parametrize("finalised", [0, 100])
def test_em_52_lc_35_killed_between_the_acknowledgement_and_its_note_sends_that_batch_again(
    outbox: Outbox,
    topic: str,
    start_relay: StartRelay,
    consume: Consume,
    ordering: str,
    finalised: int,
) -> None:
    """The first batch's, or the second's: the database is made to wait just there."""
    settings = {**FAST, "workers": 1, "ordering": ordering, "kafka": {**KAFKA, "topic": topic}}
    outbox.register(ordering=ordering)
    load(outbox, 300, 20)
    outbox.sql(
        "CREATE FUNCTION gate() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " PERFORM pg_advisory_xact_lock_shared(42); RETURN NEW; END $$"
    )
    outbox.sql(
        "CREATE TRIGGER gate AFTER INSERT ON outbox.published FOR EACH ROW"
        f" WHEN (NEW.first_seq > {finalised}) EXECUTE FUNCTION gate()"
    )
    waiting = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    with outbox.connect(autocommit=True) as gate:
        gate.execute("SELECT pg_advisory_lock(42)")
        relay = start_relay(outbox.dsn, "pod-1", **settings)
        wait_until(lambda: outbox.sql(waiting), 30, "a batch is acknowledged and not noted")
        relay.kill()
        outbox.sql(f"SELECT pg_terminate_backend(pid) FROM ({waiting}) w")
        wait_until(lambda: not outbox.sql(waiting), 10, "its backend is gone too")
    noted = {
        str(i)
        for (i,) in outbox.sql("SELECT event_id FROM outbox.events WHERE state = 'PUBLISHED'")
    }
    assert len(noted) == finalised
    before = ids_of(consume(topic, finalised + 100))
    assert len(before) == len(set(before)) == finalised + 100
    start_relay(outbox.dsn, "pod-2", **settings)
    all_published(outbox)
    messages = consume(topic, 400)
    assert_all_there(outbox, messages, duplicates=100, ordered=ordering == "Key")
    sent = ids_of(messages)
    assert {i for i in sent if sent.count(i) > 1} == set(before) - noted


def test_lc_34_lc_30_frozen_past_the_lease_and_woken_up(
    outbox: Outbox, topic: str, start_relay: StartRelay, consume: Consume, ordering: str
) -> None:
    settings = {**FAST, "ordering": ordering, "kafka": {**KAFKA, "topic": topic}}
    outbox.register(ordering=ordering)
    frozen = start_relay(outbox.dsn, "frozen", **settings)
    wait_until(lambda: frozen.happened("started"), 30, "the first relay works")
    load(outbox, 5000, 40)
    wait_until(
        lambda: outbox.value("SELECT count(*) FROM outbox.deliveries WHERE state = 'CLAIMED'"),
        20,
        "it has claims",
    )
    frozen.signal(signal.SIGSTOP)
    other = start_relay(outbox.dsn, "other", **settings)
    all_published(outbox)
    frozen.signal(signal.SIGCONT)
    load(outbox, 500, 40)
    all_published(outbox)
    assert frozen.stop() == 0
    assert other.stop() == 0
    assert_all_there(outbox, consume(topic, 5500), duplicates=2 * 200, ordered=ordering == "Key")


def test_lc_39_oo_14_the_database_is_killed_and_restarted(
    topic: str, start_relay: StartRelay, consume: Consume, ordering: str
) -> None:
    from outbox_core.store.migrate import migrate

    with scratch() as folder, Postgres(folder / "pg") as postgres:
        dsn = postgres.create_database("own")
        migrate(dsn)
        outbox = Outbox(dsn)
        outbox.register(ordering=ordering)
        load(outbox, 3000, 40)
        settings = {**FAST, "ordering": ordering, "kafka": {**KAFKA, "topic": topic}}
        relay = start_relay(dsn, "pod-1", **settings)
        wait_until(lambda: len(consume(topic)) > 200, 30, "events flow")
        published = {
            str(i)
            for (i,) in outbox.sql("SELECT event_id FROM outbox.events WHERE state = 'PUBLISHED'")
        }
        outbox.close()
        postgres.kill()
        wait_until(lambda: relay.get("/readyz")[0] == 503, 30, "readiness shows it")
        assert relay.running
        postgres.start()
        outbox = Outbox(dsn)
        still = {
            str(i)
            for (i,) in outbox.sql("SELECT event_id FROM outbox.events WHERE state = 'PUBLISHED'")
        }
        assert published <= still  # what was finalised is durable
        wait_until(lambda: relay.get("/readyz")[0] == 200, 60, "ready again")
        all_published(outbox)
        outbox.sql(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE %s",
            "outbox-relay%",
        )
        load(outbox, 500, 40)
        all_published(outbox)
        assert relay.happened("unavailable")
        assert relay.happened("available")
        assert relay.stop() == 0
        assert_all_there(
            outbox, consume(topic, 3500), duplicates=3 * 200, ordered=ordering == "Key"
        )
        outbox.close()


def test_lc_08_an_outage_of_the_broker_kills_no_event(
    outbox: Outbox,
    kafka: Kafka,
    topic: str,
    start_relay: StartRelay,
    consume: Consume,
    ordering: str,
) -> None:
    """Longer than every timeout and every retry: nothing is dead, no budget is spent."""
    settings = {
        **FAST,
        "ordering": ordering,
        "retry": {"baseDelay": "10ms", "maxDelay": "50ms", "maxAttempts": 2},
        "kafka": {**KAFKA, "topic": topic},
    }
    outbox.register(ordering=ordering)
    relay = start_relay(outbox.dsn, **settings)
    load(outbox, 300, 20)
    all_published(outbox)
    kafka.stop()
    try:
        load(outbox, 1000, 20)
        wait_until(lambda: relay.status()["breaker"] != "closed", 60, "the breaker opens")
        # Several delivery timeouts, leases and all the retries there are.
        relay.wait_report(seconds=10)
        assert "DEAD" not in outbox.states()
        spent = outbox.value("SELECT max(attempts - attempts_base) FROM outbox.deliveries")
        assert spent <= 1
        assert relay.get("/readyz")[0] == 503
    finally:
        kafka.start()
    all_published(outbox)
    wait_until(lambda: relay.get("/readyz")[0] == 200, 30, "ready again")
    assert relay.stop() == 0
    # What was in flight when the broker went may be there twice: one batch for each worker.
    assert_all_there(outbox, consume(topic, 1300), duplicates=2 * 100, ordered=ordering == "Key")


def test_lc_39_draining_gives_everything_back_or_finishes_it(
    outbox: Outbox, topic: str, start_relay: StartRelay, consume: Consume, ordering: str
) -> None:
    settings = {**FAST, "ordering": ordering, "kafka": {**KAFKA, "topic": topic}}
    outbox.register(ordering=ordering)
    load(outbox, 20_000, 100)
    relay = start_relay(outbox.dsn, "pod-1", **settings)
    wait_until(lambda: len(consume(topic)) > 300, 30, "events flow")
    assert relay.stop(30) == 0
    states = outbox.states()
    assert "CLAIMED" not in states
    assert "DEAD" not in states
    assert outbox.value("SELECT count(*) FROM outbox.holder") == 0
    published = outbox.value("SELECT count(*) FROM outbox.deliveries WHERE state = 'PUBLISHED'")
    sent = ids_of(consume(topic))
    assert len(sent) == len(set(sent)) == published


def test_oo_05_acknowledgements_that_never_come_lead_to_a_resend(
    outbox: Outbox, topic: str, start_relay: StartRelay, consume: Consume, kafka: Kafka
) -> None:
    """The broker is frozen in the middle: whether it has the events, nobody knows."""
    outbox.register()
    relay = start_relay(outbox.dsn, **{**FAST, "kafka": {**KAFKA, "topic": topic}})
    load(outbox, 200, 10)
    all_published(outbox)
    kafka.pause()
    try:
        load(outbox, 200, 10)
        wait_until(lambda: relay.status()["breaker"] != "closed", 60, "the breaker opens")
    finally:
        kafka.resume()
    all_published(outbox)
    assert relay.stop() == 0
    assert_all_there(outbox, consume(topic, 400), duplicates=400, ordered=False)


def test_tc_04_a_relay_with_an_empty_disk_goes_on_where_another_stopped(
    outbox: Outbox, topic: str, start_relay: StartRelay, consume: Consume
) -> None:
    settings = {**FAST, "kafka": {**KAFKA, "topic": topic}}
    outbox.register()
    load(outbox, 500, 10)
    first = start_relay(outbox.dsn, "pod-1", **settings)
    wait_until(lambda: "PUBLISHED" in outbox.states(), 30, "it works")
    first.stop()
    load(outbox, 500, 10)
    start_relay(outbox.dsn, "pod-2", **settings)
    all_published(outbox)
    assert_all_there(outbox, consume(topic, 1000), duplicates=0, ordered=False)


def test_a_relay_waits_for_a_store_that_is_not_there_yet(
    topic: str, start_relay: StartRelay, consume: Consume
) -> None:
    from outbox_core.store.migrate import migrate

    with scratch() as folder, Postgres(folder / "pg") as postgres:
        dsn = postgres.create_database("own")
        migrate(dsn)
        postgres.stop()
        relay = start_relay(dsn, **{**FAST, "kafka": {**KAFKA, "topic": topic}})
        wait_until(lambda: relay.happened("unavailable"), 20, "it reports what is missing")
        assert relay.get("/readyz")[0] == 503
        assert relay.get("/healthz")[0] == 200
        postgres.start()
        wait_until(lambda: relay.get("/readyz")[0] == 200, 30, "ready")
        with psycopg.connect(dsn) as conn:
            conn.execute("SELECT outbox.emit('a.b', 'x')")
        assert len(consume(topic, 1)) == 1
        assert relay.stop() == 0


def test_em_18_oo_42_topics_and_partitions_that_spread_a_key_keep_its_order_in_time(
    outbox: Outbox, make_topic: MakeTopic, start_relay: StartRelay, consume: Consume
) -> None:
    """Arrival order over several topics is seen in the brokers' timestamps."""
    prefix = make_topic(partitions=3)
    topics = [make_topic(partitions=3, name=f"{prefix}-t{n}") for n in range(3)]
    outbox.register(ordering="Key")
    for n in range(90):
        outbox.emit(f"t{n % 3}", str(n).encode(), ordering_key=f"k{n % 5}", partition_key=f"p{n}")
    settings = {**FAST, "ordering": "Key", "kafka": {**KAFKA, "topic": prefix + "-{event_type}"}}
    for pod in ("pod-1", "pod-2"):
        start_relay(outbox.dsn, pod, **settings)
    all_published(outbox)
    messages = sorted(
        (m for t in topics for m in consume(t)), key=lambda m: (m.timestamp, int(m.value or b"0"))
    )
    assert len(messages) == 90
    for key in range(5):
        numbers = [int(m.value or b"") for m in messages if int(m.value or b"") % 5 == key]
        assert numbers == sorted(numbers)

"""
Real processes, a real database, a real broker, and everything that goes wrong between them.

In each: nothing committed is lost, nothing is DEAD, order within a key is kept where it was asked
for, and duplicates stay within what was in flight at the fault.
"""

import signal
import time
from collections.abc import Sequence
from typing import Any

import psycopg
import pytest

from fixtures.outbox import Outbox
from fixtures.relays import StartRelay
from fixtures.topics import Consume, MakeTopic, Message
from services import Kafka, Postgres, scratch, wait_until

pytestmark = [pytest.mark.pg, pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(240)]

FAST: dict[str, Any] = {
    "lease": "3s",
    "batchSize": 100,
    "retry": {"baseDelay": "50ms", "maxDelay": "500ms"},
}
KAFKA: dict[str, Any] = {"deliveryTimeout": "2s"}


def load(outbox: Outbox, count: int, keys: int) -> None:
    outbox.sql(
        "INSERT INTO outbox.event (event_type, payload, ordering_key)"
        " SELECT 'order.created', convert_to(i::text, 'UTF8'), 'k' || i %% %s"
        " FROM generate_series(1, %s) i",
        keys,
        count,
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
            outbox.value("SELECT count(*) FROM outbox.delivery WHERE state <> 'PUBLISHED'") == 0
        ),
        timeout,
        "all published",
    )


@pytest.fixture(params=["None", "Key"])
def ordering(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_em_18_lc_34_lc_35_lc_38_killed_at_any_moment_loses_nothing(
    outbox: Outbox, topic: str, start_relay: StartRelay, consume: Consume, ordering: str
) -> None:
    settings = {**FAST, "ordering": ordering, "kafka": {**KAFKA, "topic": topic}}
    outbox.register(ordering=ordering)
    load(outbox, 6000, 50)
    pods = [start_relay(outbox.dsn, f"pod-{n}", **settings) for n in range(3)]
    kills = 0
    deadline = time.monotonic() + 100
    while "PENDING" in outbox.states() or "CLAIMED" in outbox.states():
        assert time.monotonic() < deadline, outbox.states()
        if kills < 6:
            busy = [p for p in pods if p.running]
            wait_until(
                lambda: outbox.value(
                    "SELECT count(*) FROM outbox.delivery WHERE state = 'CLAIMED'"
                ),
                30,
                "somebody has claims",
            )
            busy[kills % len(busy)].kill()
            kills += 1
            pods.append(start_relay(outbox.dsn, f"heir-{kills}", **settings))
        else:
            time.sleep(0.1)
    messages = consume(topic, 6000)
    assert kills == 6
    assert_all_there(outbox, messages, duplicates=kills * 2 * 100, ordered=ordering == "Key")


def test_lc_34_lc_30_frozen_past_the_lease_and_woken_up(
    outbox: Outbox, topic: str, start_relay: StartRelay, consume: Consume, ordering: str
) -> None:
    settings = {**FAST, "ordering": ordering, "kafka": {**KAFKA, "topic": topic}}
    outbox.register(ordering=ordering)
    frozen = start_relay(outbox.dsn, "frozen", **settings)
    wait_until(lambda: frozen.happened("started"), 30, "the first relay works")
    load(outbox, 5000, 40)
    wait_until(
        lambda: outbox.value("SELECT count(*) FROM outbox.delivery WHERE state = 'CLAIMED'"),
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
    assert_all_there(outbox, consume(topic, 5500), duplicates=2 * 200, ordered=False)


def test_lc_39_oo_14_the_database_is_killed_and_restarted(
    topic: str, start_relay: StartRelay, consume: Consume, ordering: str
) -> None:
    from outbox_relay.store.migrate import migrate

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
        wait_until(lambda: relay.get("/readyz")[0] == 503, 30, "readiness says so")
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
        time.sleep(10)  # several delivery timeouts, leases and all the retries there are
        assert "DEAD" not in outbox.states()
        spent = outbox.value("SELECT max(attempts - attempts_base) FROM outbox.delivery")
        assert spent <= 1
        assert relay.get("/readyz")[0] == 503
    finally:
        kafka.start()
    all_published(outbox)
    wait_until(lambda: relay.get("/readyz")[0] == 200, 30, "ready again")
    assert relay.stop() == 0
    assert len(set(ids_of(consume(topic, 1300)))) == 1300


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
    published = outbox.value("SELECT count(*) FROM outbox.delivery WHERE state = 'PUBLISHED'")
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
    from outbox_relay.store.migrate import migrate

    with scratch() as folder, Postgres(folder / "pg") as postgres:
        dsn = postgres.create_database("own")
        migrate(dsn)
        postgres.stop()
        relay = start_relay(dsn, **{**FAST, "kafka": {**KAFKA, "topic": topic}})
        wait_until(lambda: relay.happened("unavailable"), 20, "it says what is missing")
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

"""How much waits: exact while it is little, estimated at any size, and cheap always."""

import re
import time

import pytest

from fixtures.cli import Cli
from fixtures.made_settings import relay_settings, retry_policy
from fixtures.outbox import Outbox
from fixtures.relays import Broker
from outbox_core.model.lifecycle import Hold, State
from outbox_core.observe.health import Health
from outbox_core.observe.metrics import RelayMetrics
from outbox_core.store.inspect import backlog as module
from outbox_core.store.inspect.backlog import backlog, fingerprint
from outbox_relay.worker.breaker import Breaker
from outbox_relay.worker.context import Context
from outbox_relay.worker.polling import Crew
from outbox_relay.worker.reporting import Reporter

pytestmark = pytest.mark.pg


def many(outbox: Outbox, n: int, key: str = "NULL") -> None:
    outbox.conn.execute(
        "INSERT INTO outbox.event (event_type, payload, ordering_key)"
        f" SELECT 'x', '', {key} FROM generate_series(1, {n}) i"
    )


def finish(outbox: Outbox, relay: int, which: str) -> None:
    """By the superuser's back door: going through claims would take a minute."""
    outbox.sql("ALTER TABLE outbox.delivery DISABLE TRIGGER delivery_keeps_the_rules")
    outbox.conn.execute(
        "UPDATE outbox.delivery SET state = 'PUBLISHED', published_at = now(), attempts = 1"
        f" WHERE relay_id = {relay} AND {which}"
    )
    outbox.sql("ALTER TABLE outbox.delivery ENABLE ALWAYS TRIGGER delivery_keeps_the_rules")


def test_an_empty_relay_has_no_backlog(outbox: Outbox) -> None:
    seen = backlog(outbox.conn, outbox.register("relay"))
    assert (seen.pending, seen.claimed, seen.dead) == (0, 0, 0)
    assert (seen.oldest_pending_seconds, seen.approximate, seen.top_errors) == (0.0, False, [])


@pytest.mark.parametrize("ordering", ["None", "Key"])
def test_a_small_backlog_is_counted_exactly(outbox: Outbox, ordering: str) -> None:
    relay = outbox.register("relay", ordering=ordering)
    other = outbox.register("other")
    many(outbox, 3000, "'k' || i % 100")
    seen = backlog(outbox.conn, relay)
    assert (seen.pending, seen.approximate) == (3000, False)
    finish(outbox, relay, "seq % 3 <> 0")
    outbox.fail(other, outbox.claim(other, 40), State.DEAD)
    outbox.fail(other, outbox.claim(other, 30), delay=60)
    outbox.claim(other, 20)
    assert backlog(outbox.conn, relay).pending == 1000
    seen = backlog(outbox.conn, other)
    assert (seen.pending, seen.claimed, seen.dead, seen.approximate) == (2940, 20, 40, False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ordering", "key"),
    [
        pytest.param("None", "NULL", id="unordered"),
        pytest.param("Key", "'k' || i % 1000", id="1000_keys"),
        pytest.param("Key", "CASE WHEN i % 10 < 8 THEN 'hot' ELSE 'k' || i END", id="a_hot_key"),
        pytest.param("Key", "CASE WHEN i > 100000 THEN 'new' ELSE 'old' END", id="uneven_in_time"),
    ],
)
def test_a_large_backlog_is_estimated_within_a_fifth_and_by_index(
    outbox: Outbox, ordering: str, key: str
) -> None:
    relay = outbox.register("relay", ordering=ordering)
    outbox.sql("ANALYZE")
    many(outbox, 150_000, key)
    finish(outbox, relay, "seq % 5 = 0 OR seq BETWEEN 30000 AND 70000")
    exact = outbox.value("SELECT count(*) FROM outbox.delivery WHERE state = 'PENDING'")
    seen = backlog(outbox.conn, relay)
    assert seen.approximate
    assert seen.pending == pytest.approx(exact, rel=0.2)

    with outbox.conn.transaction():
        outbox.conn.execute(module.BY_INDEX)
        low, high = (0, 63) if ordering == "Key" else (-1, -1)
        values = {
            "relay": relay, "floor": 0, "low": low, "high": high,
            "cap": module.MOST_COUNTED_ROWS, "sample": module.SAMPLED_ROWS, "head": 10,
        }  # fmt: skip
        for statement in (
            module.ESTIMATE.format(kind=module.IN_LINE.where),
            module.COUNT.format(kind=module.IN_LINE.where),
            module.OLDEST,
        ):
            query = statement.as_string(outbox.conn)
            rows = outbox.conn.execute("EXPLAIN (ANALYZE, TIMING OFF) " + query, values)
            plan = "\n".join(line for (line,) in rows)
            assert "Seq Scan" not in plan, plan
            read = sum(
                int(a) * int(b) for a, b in re.findall(r"delivery.*?rows=(\d+) loops=(\d+)\)", plan)
            )
            assert read < 25_000, plan


@pytest.mark.slow
def test_a_backlog_is_counted_quickly(outbox: Outbox) -> None:
    relay = outbox.register("relay", ordering="Key")
    many(outbox, 100_000, "'k' || i % 1000")
    backlog(outbox.conn, relay)
    times = []
    for _ in range(10):
        started = time.perf_counter()
        backlog(outbox.conn, relay)
        times.append(time.perf_counter() - started)
    assert min(times) < 0.1  # 20 ms where nothing else runs


@pytest.mark.slow
def test_many_that_wait_for_a_time_or_a_key_are_estimated(outbox: Outbox) -> None:
    relay = outbox.register("relay", ordering="Key")
    many(outbox, 60_000, "'k' || i % 50")
    outbox.conn.execute("UPDATE outbox.delivery SET hold = 'KEY' WHERE seq % 2 = 0")
    outbox.conn.execute("UPDATE outbox.delivery SET hold = 'TIME' WHERE seq % 2 = 1")
    outbox.sql("ANALYZE outbox.delivery")
    seen = backlog(outbox.conn, relay)
    assert seen.pending == pytest.approx(60_000, rel=0.2)
    assert seen.approximate


def test_the_oldest_is_counted_from_when_it_could_go_out(outbox: Outbox) -> None:
    relay = outbox.register("relay")
    outbox.emit("scheduled", available_at="2100-01-01")
    assert backlog(outbox.conn, relay).oldest_pending_seconds == 0
    outbox.emit("waits")
    outbox.sql("UPDATE outbox.delivery SET available_at = now() - interval '90 s' WHERE seq = 2")
    assert backlog(outbox.conn, relay).oldest_pending_seconds == pytest.approx(90, abs=10)
    outbox.fail(relay, outbox.claim(relay), delay=3600)
    assert backlog(outbox.conn, relay).oldest_pending_seconds == 0
    outbox.sql("UPDATE outbox.delivery SET available_at = now() - interval '40 s' WHERE seq = 2")
    assert backlog(outbox.conn, relay).oldest_pending_seconds == pytest.approx(40, abs=10)


def test_the_most_frequent_errors_come_first_whatever_their_numbers(outbox: Outbox) -> None:
    relay = outbox.register("relay")
    many(outbox, 30)
    for n, claim in enumerate(outbox.claim(relay)):
        text = f"topic missing at offset {n}" if n < 20 else "too large"
        state = State.DEAD if n % 2 else State.PENDING
        outbox.fail(relay, [claim], state, delay=60 if state is State.PENDING else 0, text=text)
    first, second = backlog(outbox.conn, relay).top_errors
    assert (first.text, first.count) == ("topic missing at offset 0", 20)
    assert (second.error_class, second.code, second.count) == ("transient", "TEST", 10)


def test_a_held_xmin_below_the_floor_is_not_walked_over(outbox: Outbox) -> None:
    relay = outbox.register("relay")
    many(outbox, 50)
    assert backlog(outbox.conn, relay, floor=20).pending == 30


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("offset 42", "offset 7"),
        (
            "event 3f2b8c1e-0000-4000-8000-1234567890ab",
            "event 11111111-2222-3333-4444-555555555555",
        ),
        ("block 0xdeadbeef", "block 0x12"),
        ("took 1.5 s", "took 20 s"),
    ],
)
def test_numbers_and_ids_do_not_make_another_error(one: str, other: str) -> None:
    assert fingerprint(one) == fingerprint(other)
    assert fingerprint("no leader") == "no leader"


def test_counts_are_per_relay_and_state(outbox: Outbox, cli: Cli) -> None:
    relay = outbox.register("relay", ["x"])
    many(outbox, 10)
    claims = outbox.claim(relay, 5)
    outbox.publish(relay, claims[:2])
    outbox.fail(relay, claims[2:4], State.DEAD, hold=Hold.NONE)
    outbox.emit("nobody.wants")
    for exact in ((), ("--exact",)):
        document = cli.json("counts", *exact)
        (row,) = document["relays"]
        found = [row[s] for s in ("pending", "claimed", "published", "dead")]
        assert found == [5, 1, 2, 2]
        assert document["unmatched"] == {"count": 1, "at_least": False}
    assert "unmatched events: 1" in cli("counts")


@pytest.mark.slow
def test_counts_of_many_are_marked_as_estimates(outbox: Outbox, cli: Cli) -> None:
    relay = outbox.register("relay")
    many(outbox, 60_000)
    finish(outbox, relay, "seq <= 30000")
    (row,) = cli.json("counts")["relays"]
    assert row["approximate"]
    assert row["published"] == pytest.approx(30_000, rel=0.2)
    assert "~" in cli("counts")
    (row,) = cli.json("counts", "--exact")["relays"]
    assert (row["published"], row["pending"], row["approximate"]) == (30_000, 30_000, False)


def test_the_report_counts_what_is_published_once_a_minute(
    outbox: Outbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTBOX_DSN", outbox.dsn)
    now = 100.0
    metrics = RelayMetrics()
    context = Context(
        settings=relay_settings(), relay=outbox.register(), publisher=Broker(),
        policy=retry_policy(), crew=Crew(1, -1), breaker=Breaker(lambda: now), health=Health(),
        metrics=metrics, clock=lambda: now,
    )  # fmt: skip
    reporter = Reporter(context)
    for _ in range(5):
        outbox.emit()
    outbox.publish(context.relay, outbox.claim(context.relay, limit=3))
    assert reporter.report().published == 3
    outbox.publish(context.relay, outbox.claim(context.relay, limit=1))
    now += 30
    assert reporter.report().published == 3
    now += 31
    metrics.show(reporter.report())
    reporter.close()
    assert metrics.registry.get_sample_value("outbox_deliveries_published") == 4

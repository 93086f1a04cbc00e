"""The proxy itself: what each fault leaves in the database, and what the client notices."""

import time

import psycopg
import pytest

from dev.services import wait_until
from fixtures.losing import LosingProxy, Loss, Plan, Point, RandomPlan, Times
from fixtures.outbox import Outbox
from fixtures.wire import Trip

pytestmark = pytest.mark.pg

TIMES = Times(swallow=0.3, late=0.3, delay=0.3)


def is_insert(trip: Trip) -> bool:
    return "INSERT" in trip.text


def stored(outbox: Outbox) -> int:
    return int(outbox.value("SELECT count(*) FROM written"))


@pytest.fixture
def written(outbox: Outbox) -> Outbox:
    """With a table to write to."""
    outbox.sql("CREATE TABLE written (n int)")
    return outbox


@pytest.mark.parametrize(
    ("loss", "at_once", "later"),
    [
        (Loss.CUT_BEFORE, 0, 0),
        (Loss.CUT_AFTER, 1, 1),
        (Loss.SWALLOW, 1, 1),
        (Loss.LATE, 0, 1),
    ],
)
def test_a_loss_resets_the_client_before_or_after_the_commit(
    written: Outbox, loss: Loss, at_once: int, later: int
) -> None:
    plan = Plan([Point(is_insert, loss)])
    with LosingProxy(written.dsn, plan, TIMES) as proxy:
        conn = psycopg.connect(proxy.dsn, autocommit=True)
        with pytest.raises(psycopg.OperationalError):
            conn.execute("INSERT INTO written VALUES (%s)", (1,))
        assert conn.closed
        assert stored(written) == at_once
        wait_until(lambda: not proxy.is_losing, 5, "the fault is over")
    assert stored(written) == later
    assert [s.loss for s in plan.strikes] == [loss]


def test_cut_during_leaves_the_server_at_work(written: Outbox) -> None:
    with LosingProxy(written.dsn, Plan([Point(is_insert, Loss.CUT_DURING)]), TIMES) as proxy:
        conn = psycopg.connect(proxy.dsn, autocommit=True)
        with pytest.raises(psycopg.OperationalError):
            conn.execute("INSERT INTO written SELECT 1 FROM pg_sleep(0.3)")
        assert stored(written) == 0
        wait_until(lambda: stored(written) == 1, 5, "it commits though nobody waits")


def test_a_delay_loses_nothing(written: Outbox) -> None:
    with LosingProxy(written.dsn, Plan([Point(is_insert, Loss.DELAY)]), TIMES) as proxy:
        began = time.monotonic()
        with psycopg.connect(proxy.dsn, autocommit=True) as conn:
            conn.execute("INSERT INTO written VALUES (1)")
            assert time.monotonic() - began >= TIMES.delay
            conn.execute("INSERT INTO written VALUES (2)")
    assert stored(written) == 2


def test_a_point_counts_round_trips_and_the_next_begins_after_it(written: Outbox) -> None:
    plan = Plan([Point(is_insert, Loss.CUT_AFTER, nth=2), Point(is_insert, Loss.CUT_BEFORE)])
    with LosingProxy(written.dsn, plan, TIMES) as proxy:
        for n in range(5):
            try:
                with psycopg.connect(proxy.dsn, autocommit=True) as conn:
                    conn.execute("INSERT INTO written VALUES (%s)", (n,))
            except psycopg.OperationalError:
                assert n in (1, 2)
    assert [n for (n,) in written.sql("SELECT n FROM written ORDER BY n")] == [0, 1, 3, 4]
    assert plan.struck.is_set()


def test_a_pipeline_is_one_round_trip_and_a_commit_knows_its_transaction(written: Outbox) -> None:
    with (
        LosingProxy(written.dsn) as proxy,
        psycopg.connect(proxy.dsn, autocommit=True, application_name="me") as conn,
    ):
        with conn.pipeline():
            conn.execute("INSERT INTO  written\n VALUES (%s)", (1,))
            conn.execute("SELECT 2")
        with conn.transaction():
            conn.execute("SELECT 3")
    assert [(t.application, t.text, t.within) for t in proxy.trips] == [
        ("me", "CONNECT", ()),
        ("me", "INSERT INTO written VALUES ($1); SELECT 2", ()),
        ("me", "BEGIN", ()),
        ("me", "SELECT 3", ("BEGIN",)),
        ("me", "COMMIT", ("BEGIN", "SELECT 3")),
    ]


def test_what_the_server_sends_unasked_and_last_comes_through(outbox: Outbox) -> None:
    with LosingProxy(outbox.dsn) as proxy, psycopg.connect(proxy.dsn, autocommit=True) as conn:
        conn.execute("LISTEN here")
        outbox.sql("NOTIFY here, 'hello'")
        assert [n.payload for n in conn.notifies(timeout=5, stop_after=1)] == ["hello"]
        outbox.sql("SELECT pg_terminate_backend(%s)", conn.info.backend_pid)
        with pytest.raises(psycopg.errors.AdminShutdown):
            conn.execute("SELECT 1")


def test_a_seed_means_the_same_faults() -> None:
    trips = [Trip(f"app {n % 3}", ("SELECT 1",)) for n in range(300)]
    first, again, other = (RandomPlan(seed, 5) for seed in (1, 1, 2))
    losses = [[plan.loss_at(trip) for trip in trips] for plan in (first, again, other)]
    assert losses[0] == losses[1] != losses[2]
    assert sum(loss is not None for loss in losses[0]) == 5

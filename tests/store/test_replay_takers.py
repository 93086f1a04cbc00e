"""Many take part in a replay at the same time, and some of them are lost: each event comes back
once, and a key's events in their order."""

import random
import threading
from contextlib import suppress

import psycopg
import pytest

from dev.services import wait_until
from fixtures.bulk import Bulk, Witness, emit_many, end_all, replay_settings
from fixtures.outbox import Outbox
from outbox_core.store import replays

pytestmark = pytest.mark.pg

PUBLISHED = {"states": ["PUBLISHED"], "eventTypes": ["*"]}
ORDERINGS = pytest.mark.parametrize("ordering", ["None", "Key"])


def ended(outbox: Outbox, n: int, ordering: str, keys: int = 9) -> int:
    relay = outbox.register("relay", ordering=ordering)
    emit_many(outbox, n, keys)
    end_all(outbox, relay)
    return relay


@ORDERINGS
def test_eight_takers_bring_each_event_back_once_and_in_order(
    outbox: Outbox, ordering: str
) -> None:
    ended(outbox, 4000, ordering)
    witness = Witness(outbox)
    bulk = Bulk(outbox, select=PUBLISHED)
    assert bulk.run(takers=8)[:4] == (4000, 4000, 0, {})
    assert sorted(witness.seqs(bulk.id)) == list(range(1, 4001))
    if ordering == "Key":
        assert witness.keys_in_order(bulk.id)
    workers = outbox.value("SELECT count(DISTINCT worker) FROM outbox.replay_ledger")
    assert workers > 1


@ORDERINGS
def test_takers_that_are_killed_change_nothing(outbox: Outbox, ordering: str) -> None:
    ended(outbox, 4000, ordering)
    witness = Witness(outbox)
    bulk = Bulk(outbox, select=PUBLISHED)
    killed = 0
    done = threading.Event()

    def kill() -> None:
        nonlocal killed
        rng = random.Random(7)
        with outbox.connect(autocommit=True) as conn:
            while not done.wait(rng.uniform(0, 0.05)):
                found = conn.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE application_name LIKE 'taker-%' AND state = 'active'"
                    " AND datname = current_database() ORDER BY random() LIMIT 1"
                ).fetchall()
                killed += len(found)

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    try:
        progress = bulk.run(takers=4)
    finally:
        done.set()
        killer.join()
    assert killed > 3
    assert progress[:4] == (4000, 4000, 0, {})
    assert sorted(witness.seqs(bulk.id)) == list(range(1, 4001))
    if ordering == "Key":
        assert witness.keys_in_order(bulk.id)


def test_a_chunk_in_other_hands_is_left_to_them_and_so_is_what_comes_after_it(
    outbox: Outbox,
) -> None:
    ended(outbox, 200, "Key", keys=1)  # one key, one band, four chunks
    bulk = Bulk(outbox, select=PUBLISHED)
    with outbox.connect() as slow:
        assert replays.take(slow, bulk.id, "slow").outcome == "taken"
        assert bulk.take().outcome == "busy"
        slow.rollback()  # it died
    with outbox.connect() as slow:
        assert replays.take(slow, bulk.id, "slow").replayed == 50
        assert bulk.take().outcome == "busy"
        slow.commit()
    assert bulk.take().replayed == 50
    rows = outbox.sql("SELECT n FROM outbox.replay_ledger ORDER BY at")
    assert rows == [(0,), (1,)]


def test_the_ledger_is_the_last_line_of_defence(outbox: Outbox) -> None:
    """However it came to it: who does a chunk twice is undone."""
    ended(outbox, 10, "None")
    bulk = Bulk(outbox, select=PUBLISHED)
    with outbox.connect() as first:
        first.execute(
            "INSERT INTO outbox.replay_ledger VALUES (%s, 0, 0, 0, '{}', now(), 'first')",
            (bulk.id,),
        )
        taken: list[object] = []

        def take() -> None:
            try:
                with outbox.connect(autocommit=True) as second:
                    taken.append(replays.take(second, bulk.id, "second"))
            except Exception as error:
                taken.append(error)

        thread = threading.Thread(target=take, daemon=True)
        thread.start()
        waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted"
        wait_until(lambda: outbox.value(waiting) > 0, 10, "the second to wait for the first")
        first.commit()
        thread.join()
    assert "duplicate key" in str(taken[0])
    assert outbox.states() == {"PUBLISHED": 10}


@ORDERINGS
def test_replays_that_overlap_bring_each_event_back_at_most_once_each(
    outbox: Outbox, ordering: str
) -> None:
    relay = ended(outbox, 2000, ordering)
    witness = Witness(outbox)
    bulks = [Bulk(outbox, f"r{n}", select=PUBLISHED) for n in range(3)]
    threads = [threading.Thread(target=b.run, args=(2,), daemon=True) for b in bulks]
    for thread in threads:
        thread.start()
    while any(t.is_alive() for t in threads):
        # What came back goes out meanwhile, and is there for the others. In no order, unlike what
        # relays and replays do: so this one may have to wait.
        with suppress(psycopg.errors.DeadlockDetected):
            end_all(outbox, relay)
    for bulk in bulks:
        seen, progress = witness.seqs(bulk.id), bulk.progress()
        assert len(seen) == len(set(seen)) == progress.replayed
        assert progress.replayed + progress.skipped == 2000
        assert set(progress.because) <= {"Pending", "Claimed"}
        if ordering == "Key":
            assert witness.keys_in_order(bulk.id)


@pytest.mark.parametrize("gaps", ["none", "some", "most"])
def test_neighbours_of_the_selected_are_left_alone(outbox: Outbox, gaps: str) -> None:
    """A chunk of neighbours is read as ranges: what lies between them is no part of it."""
    relay = outbox.register("relay")
    kinds = {"none": "true", "some": "i %% 7 > 0", "most": "i %% 7 = 0"}
    outbox.sql(
        "INSERT INTO outbox.event (event_type, payload) SELECT CASE WHEN "
        f"{kinds[gaps]} THEN 'wanted' ELSE 'other' END, '' FROM generate_series(1, 1000) i"
    )
    end_all(outbox, relay)
    bulk = Bulk(outbox, select={"states": ["PUBLISHED"], "eventTypes": ["wanted"]})
    assert bulk.matched == {"none": 1000, "some": 858, "most": 142}[gaps]
    assert bulk.run().replayed == bulk.matched
    wrong = (
        "SELECT count(*) FROM outbox.events"
        " WHERE (event_type = 'wanted') <> (state = 'PENDING' AND replay_id IS NOT NULL)"
    )
    assert outbox.value(wrong) == 0


def test_two_drivers_plan_once(outbox: Outbox) -> None:
    ended(outbox, 500, "None")
    found: list[int] = []

    def drive() -> None:
        with outbox.connect(autocommit=True) as conn:
            asked = replay_settings(select=PUBLISHED)
            found.append(replays.plan(conn, asked, replays.begin(conn, asked)))

    threads = [threading.Thread(target=drive, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [500] * 4
    assert outbox.value("SELECT sum(size) FROM outbox.replay_chunk") == 500
    assert outbox.value("SELECT count(*) FROM outbox.audit") == 1

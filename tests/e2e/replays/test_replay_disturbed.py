"""
A large replay beside live traffic, in which everything that can fail does: an executor, the driver,
the operator, the database; it is suspended and resumed. Each event of the selection goes out
exactly once more, none outside it, in the order of its key.

OUTBOX_REPLAY_EVENTS=1000000 makes the past as large as people have it.
"""

import os

import pytest

from fixtures.breakable import with_own_postgres
from fixtures.cluster import Namespace
from fixtures.installation import Installation
from fixtures.replay_shop import Replays
from fixtures.shop import Backends, Shop

EVENTS = int(os.environ.get("OUTBOX_REPLAY_EVENTS", "30000"))
DEAD = EVENTS // 5
RATE = max(DEAD // 40, 1)
"""So that it takes 40 s if nothing happens: five disturbances fit in."""
LIVE_PER_SECOND = 50
PATIENCE = 240
"""Seconds, for whatever surely comes, on a machine that is busy."""
BATCH = max(RATE // 5, 200)
IN_FLIGHT = 3 * BATCH
"""Events: of batches that Kafka had and the database, when it died, did not know of yet."""
pytestmark = pytest.mark.timeout(1200 + EVENTS // 200)

SMALL = {"cpu": "100m", "memory": "512Mi"}
"""So that a node of two cores takes them, beside all that runs on it."""


def test_oo_61_a_replay_survives_whatever_happens(
    namespace: Namespace, backends: Backends, installed: Installation
) -> None:
    own, postgres = with_own_postgres(namespace, backends)
    shop = Shop(namespace, own)
    replays = Replays(shop)
    replays.open_shop(ordering="Key", batchSize=BATCH)
    replays.make_past(EVENTS, DEAD)
    replays.watch()
    live = shop.emit(3600 * LIVE_PER_SECOND, seconds=3600)  # as long as the replay; ended below
    replays.create(
        engine="Job",
        rate={"eventsPerSecond": RATE},
        driver=SMALL,
        executor={"instances": 2, **SMALL},
    )
    replays.wait_replayed(DEAD // 20, PATIENCE)

    namespace.wait(lambda: replays.pods("executor"), PATIENCE, "an executor")
    (victim, *_) = replays.pods("executor")
    replays.kill(victim)
    replays.wait_replayed(DEAD * 3 // 20, PATIENCE)

    replays.suspend(True)
    replays.wait_phase("Suspended", PATIENCE)
    replays.wait_no_pods(PATIENCE)
    before = replays.ledger()
    (done,) = before.values()
    assert 0 < done < DEAD
    # The status tells the same, and that these are the last figures; and nothing more comes while
    # the relay publishes what did.
    namespace.wait(
        lambda: "The figures are" not in replays.status()["message"], PATIENCE, "the last figures"
    )
    assert replays.status()["replayed"] == done
    namespace.wait(lambda: "PENDING" not in replays.states(), PATIENCE, "what came back is out")
    assert replays.ledger() == before
    replays.suspend(False)
    replays.wait_replayed(max(done + 1, DEAD * 5 // 20), PATIENCE)

    postgres.kill()
    replays.wait_replayed(DEAD * 7 // 20, PATIENCE)

    namespace.wait(lambda: replays.pods("driver"), PATIENCE, "a driver")
    (driver,) = replays.pods("driver")
    replays.kill(driver)
    installed.kill()
    replays.wait_replayed(DEAD * 10 // 20, PATIENCE)
    told = replays.wait_phase("Succeeded", PATIENCE + DEAD / RATE)
    assert (told["matched"], told["replayed"]) == (DEAD, DEAD)
    assert told["attempts"] >= 3  # resumed, and after the driver's death
    assert told["failures"] >= 1
    assert set(replays.events()) >= {
        *("AttemptStarted", "Running", "Suspended", "Resumed", "AttemptFailed", "Succeeded")
    }

    shop.stop(live)
    emitted = int(
        shop.sql("SELECT count(*) FROM outbox.event WHERE event_type = 'order.placed'")[0]
    )
    assert emitted > LIVE_PER_SECOND
    shop.wait_published(EVENTS + emitted, PATIENCE)

    # In the database: by the ledger, by the deliveries, and by one who saw each come back.
    (given_back,) = replays.ledger().values()
    assert given_back == DEAD
    planned = shop.sql(  # and the plan itself is gone with the end of the replay
        "SELECT matched, (SELECT count(*) FROM outbox.replay_chunk) FROM outbox.replay"
    )
    assert planned == [f"{DEAD}|0"]
    marked = shop.sql(
        "SELECT count(*), count(*) FILTER (WHERE convert_from(e.payload, 'UTF8')::int >="
        f" {DEAD} OR e.event_type = 'order.placed') FROM outbox.deliveries d"
        " JOIN outbox.event e USING (seq) WHERE d.replay_id IS NOT NULL"
    )
    assert marked == [f"{DEAD}|0"]
    assert replays.came_back() == (DEAD, DEAD)

    # In Kafka: all of the selection, nothing else, in order; twice only what the database, when it
    # died, did not know to be there.
    arrived = replays.tally(replays.topic, DEAD, PATIENCE)
    assert (arrived["different"], arrived["outside"], arrived["disorder"]) == (DEAD, 0, 0)
    assert arrived["messages"] - DEAD <= IN_FLIGHT
    lived = replays.tally(replays.live_topic, 3600 * LIVE_PER_SECOND, PATIENCE)
    assert (lived["different"], lived["disorder"]) == (emitted, 0)
    assert lived["messages"] - emitted <= IN_FLIGHT

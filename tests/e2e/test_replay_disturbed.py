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

EVENTS = int(os.environ.get("OUTBOX_REPLAY_EVENTS", "100000"))
DEAD = EVENTS // 5
LIVE = 20_000
pytestmark = pytest.mark.timeout(300 + EVENTS // 500)

SMALL = {"cpu": "100m", "memory": "512Mi"}
"""So that a node of two cores takes them, beside all that runs on it."""
SECONDS = 15
"""Until a suspended replay stands still, on a machine that is busy."""


def test_oo_61_a_replay_survives_whatever_happens(
    namespace: Namespace, backends: Backends, installed: Installation
) -> None:
    own, postgres = with_own_postgres(namespace, backends)
    shop = Shop(namespace, own)
    replays = Replays(shop)
    replays.open_shop(ordering="Key")
    replays.make_past(EVENTS, DEAD)
    live = shop.emit(LIVE, seconds=60)
    replays.create(engine="Job", driver=SMALL, executor={"instances": 2, **SMALL})
    replays.wait_replayed(DEAD // 20, 120)

    (victim, *_) = replays.pods("executor")
    replays.kill(victim)
    replays.wait_replayed(DEAD * 3 // 20)

    replays.suspend(True)
    replays.wait_phase("Suspended", SECONDS)
    namespace.wait(lambda: not replays.pods("driver"), SECONDS, "no driver")
    namespace.wait(lambda: not replays.pods("executor"), SECONDS, "no executor")
    (done,) = replays.ledger().values()
    assert done < DEAD
    replays.suspend(False)
    replays.wait_replayed(max(done, DEAD * 5 // 20), 120)

    postgres.kill()
    replays.wait_replayed(DEAD * 7 // 20, 120)

    (driver,) = replays.pods("driver")
    replays.kill(driver)
    installed.kill()
    replays.wait_replayed(DEAD * 10 // 20, 120)
    told = replays.wait_phase("Succeeded", 120 + DEAD / 500)
    assert (told["matched"], told["replayed"]) == (DEAD, DEAD)
    assert told["attempts"] == 3  # resumed, and after the driver's death

    (given_back,) = replays.ledger().values()
    assert given_back == DEAD
    shop.finish(live, 120)
    shop.wait_published(EVENTS + LIVE, 120)
    outside = shop.sql(
        "SELECT count(*) FROM outbox.delivery WHERE attempts > 1 AND replay_id IS NULL"
        " AND previous_published_at IS NOT NULL"
    )
    assert outside == ["0"]
    arrived = shop.arrived(DEAD, topic=replays.topic)
    assert (arrived["missing"], arrived["disorder"]) == (0, 0)
    assert shop.arrived(LIVE, topic=replays.live_topic)["missing"] == 0

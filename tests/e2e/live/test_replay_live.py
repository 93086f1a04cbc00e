"""What live traffic feels of a replay at the default rate: the time from commit to publication."""

import pytest

from fixtures.replay_shop import Replays
from fixtures.shop import Shop

pytestmark = pytest.mark.timeout(600)

DEAD = 30_000
"""Half a minute at the default rate."""
PER_SECOND = 50
BEFORE = 30 * PER_SECOND
"""Live events without a replay, to compare with."""
NOTICEABLE = 1.0
"""Seconds: below that a wait is the relay's own rhythm, and a busy machine's."""


def test_live_events_do_not_wait_for_a_replay_at_the_default_rate(shop: Shop) -> None:
    replays = Replays(shop)
    replays.open_shop(ordering="Key")
    replays.make_past(events=DEAD, dead=DEAD)
    live = shop.emit(1800 * PER_SECOND, seconds=1800)
    placed = "SELECT count(*) FROM outbox.event WHERE event_type = 'order.placed'"
    shop.namespace.wait(lambda: int(shop.sql(placed)[0]) >= BEFORE, 180, "live traffic")
    (since,) = shop.sql("SELECT now()")
    replays.create(engine="Job", driver={"cpu": "100m"}, executor={"instances": 0})
    replays.wait_phase("Succeeded", 240)
    shop.stop(live)
    shop.wait_published(DEAD + int(shop.sql(placed)[0]), 120)

    def moment(query: str) -> str:
        (at,) = shop.sql(query)
        return f"'{at}'"

    # Not the first seconds, in which the producer and its connections begin.
    began = moment(
        "SELECT min(created_at) + interval '5 s' FROM outbox.event"
        " WHERE event_type = 'order.placed'"
    )
    first = moment("SELECT min(at) FROM outbox.replay_ledger")
    last = moment("SELECT max(at) FROM outbox.replay_ledger")
    without = replays.live_latency(f"e.created_at >= {began} AND e.created_at < '{since}'")
    during = replays.live_latency(f"e.created_at BETWEEN {first} AND {last}")
    for name, (count, p50, p99) in (("without", without), ("beside", during)):
        print(f"{name} a replay: {count} live events, p50 {p50:.3f} s, p99 {p99:.3f} s")
    assert min(without[0], during[0]) > 10 * PER_SECOND
    assert during[2] <= max(2 * without[2], NOTICEABLE)

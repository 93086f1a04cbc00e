"""The pace of a replay beside live traffic."""

from hypothesis import given
from hypothesis import strategies as st

from outbox_spark.throttle import LEAST_SHARE, Throttle

USUAL = 0.05


def throttle(rate: float = 1000, usual: float = USUAL, yields: bool = True) -> Throttle:
    return Throttle(rate, usual, yields)


def test_the_pace_is_the_rate_while_live_events_wait_no_longer_than_usual() -> None:
    assert throttle().next(1000, USUAL) == 1000


def test_a_short_wait_is_no_reason_to_slow_down_where_live_events_usually_wait_less() -> None:
    assert throttle(usual=0.001).next(1000, 0.9) == 1000


def test_it_halves_while_live_events_wait() -> None:
    assert throttle().next(1000, 1.5) == 500
    assert throttle().next(500, 1.5) == 250


def test_where_live_events_waited_before_they_may_wait_twice_as_long() -> None:
    assert throttle(usual=10).next(1000, 19) == 1000
    assert throttle(usual=10).next(1000, 21) == 500


def test_a_backlog_from_before_is_usual_only_until_it_is_gone() -> None:
    now = throttle(usual=600)
    assert now.next(1000, 1100) == 1000
    for waited in (500, 900, 60, 0.1, 300):  # it shrinks, and grows again beside the replay
        now = now.seen(waited)
    assert now.usual == 0.1
    assert now.next(1000, 1.5) == 500


def test_what_grows_beside_the_replay_never_becomes_usual() -> None:
    now = throttle()
    for waited in range(1, 100):
        now = now.seen(float(waited))
    assert now == throttle()


def test_it_crawls_and_does_not_stand_still() -> None:
    pace = 1000.0
    for _ in range(50):
        pace = throttle().next(pace, 60)
    assert pace == 10


def test_the_slowest_rate_does_not_become_slower() -> None:
    assert throttle(rate=1).next(1, 60) == 1


def test_it_grows_again_by_a_quarter_up_to_the_rate() -> None:
    assert throttle().next(400, 0) == 500
    assert throttle().next(900, 0) == 1000


def test_who_does_not_yield_keeps_the_rate() -> None:
    assert throttle(yields=False).next(10, 3600) == 1000


@given(
    rate=st.integers(1, 1_000_000),
    usual=st.floats(0, 1e6),
    waits=st.lists(st.floats(0, 1e6), max_size=40),
)
def test_whatever_happens_it_stays_between_a_crawl_and_the_rate(
    rate: int, usual: float, waits: list[float]
) -> None:
    pace = float(rate)
    for waited in waits:
        pace = throttle(rate, usual).next(pace, waited)
        assert max(rate * LEAST_SHARE, 1.0) <= pace <= rate

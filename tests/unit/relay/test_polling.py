"""Pace and crew: pauses grow with the silence, and a lane is one worker's at a time."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import combinations
from typing import TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from dev.services import wait_until
from fixtures.moments import moment_of
from outbox_core.errors import StoreUnavailable
from outbox_core.model.event import Claim
from outbox_relay.worker.polling import Crew, Pace, Share, fullness

T = TypeVar("T")
NOTHING = Share((), None)


# Pace ---------------------------------------------------------------------------------------


class Clock:
    def __init__(self) -> None:
        self.now = 50.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("silence", "pause"), [(0.0, 0.002), (0.01, 0.002), (1.0, 0.1), (20.0, 2.0), (3600.0, 3.0)]
)
def test_the_pause_is_a_tenth_of_the_silence_within_bounds(silence: float, pause: float) -> None:
    clock = Clock()
    pace = Pace(0.002, 3.0, clock)
    clock.now += silence
    assert pace.pause() == pytest.approx(pause)


def test_what_is_found_ends_the_silence() -> None:
    clock = Clock()
    pace = Pace(0.002, 3.0, clock)
    clock.now += 3600
    pace.found()
    assert pace.pause() == 0.002


def test_an_idle_relay_looks_20_times_a_minute() -> None:
    clock = Clock()
    pace = Pace(0.002, 3.0, clock)
    clock.now += 3600
    end, looks = clock.now + 60, 0
    while clock.now < end:
        clock.now += pace.pause()
        looks += 1
    assert looks == 20


def wait_after(
    share: float, *, since_last: float, took: float = 0.0, shortest: float = 0.008
) -> float:
    """After a claim that filled this share of a batch and whose events took this long."""
    clock = Clock()
    pace = Pace(shortest, 60.0, clock)
    clock.now += since_last
    pace.claims()
    clock.now += took
    return pace.gather(share)


def test_after_a_lone_event_the_next_claim_waits_for_more() -> None:
    assert wait_after(1 / 2000, since_last=60.0) == pytest.approx(0.008)


def test_the_time_from_claim_to_claim_counts() -> None:
    assert wait_after(1 / 2000, since_last=1.0, took=0.005) == pytest.approx(0.003)
    assert wait_after(1 / 2000, since_last=1.0, took=0.2) == 0.0


def test_nobody_waits_longer_than_until_a_tenth_of_a_batch_is_there() -> None:
    assert wait_after(0.05, since_last=0.003) == pytest.approx(0.006)


@pytest.mark.parametrize("share", [0.1, 0.5, 1.0])
def test_a_backlog_does_not_wait(share: float) -> None:
    assert wait_after(share, since_last=0.02, took=0.02) == 0.0
    assert wait_after(share, since_last=0.002, took=0.002) == 0.0


def test_what_was_published_is_soon_recorded_although_claims_are_seldom() -> None:
    assert wait_after(1 / 2000, since_last=100.0, shortest=50.0) == pytest.approx(0.05)


@pytest.mark.parametrize(("rate", "rounds"), [(10, 10), (500, 125), (10_000, 125)])
def test_rounds_do_not_grow_with_the_rate(rate: int, rounds: int) -> None:
    """In a second, with rounds that take 3 ms; what is found is what came since the last claim."""
    clock = Clock()
    pace = Pace(0.008, 3.0, clock)
    claims, served, start = 0, 0.0, clock.now
    while clock.now < start + 1:
        pace.claims()
        found = int((clock.now - start) * rate - served)
        if not found:
            clock.now += 0.001
            continue
        served += found
        claims += 1
        clock.now += 0.003
        clock.now += pace.gather(found / 2000)
    assert claims == pytest.approx(rounds, abs=2)


def claim_of(size: int) -> Claim:
    at = moment_of(datetime(2026, 1, 1, tzinfo=UTC))
    return Claim(
        *(1, 1, at, 1, 0, 0, -1, "id", "a.b", bytes(size)),
        *(None,) * 12, created_at=at, max_attempts=None,
    )  # fmt: skip


def test_a_batch_is_full_by_number_or_by_size() -> None:
    assert fullness([claim_of(10)] * 2000, 2000) == 1.0
    assert fullness([claim_of(0)], 2000) == 1 / 2000
    assert fullness([claim_of(4 * 1024 * 1024)], 2000) == 0.5


# Crew ---------------------------------------------------------------------------------------


@contextmanager
def in_thread(body: Callable[[], object]) -> Iterator[threading.Thread]:
    thread = threading.Thread(target=body, daemon=True)
    thread.start()
    yield thread
    thread.join(10)
    assert not thread.is_alive()


@pytest.fixture
def crew() -> Crew:
    """Two workers, both awake, and eight lanes."""
    made = Crew(2, None)
    made.become(17)
    made.add(range(8))
    made.wake()
    return made


def test_oo_38_without_order_everybody_looks_into_the_one_lane() -> None:
    crew = Crew(3, -1)
    assert [crew.share(i) for i in range(3)] == [Share((-1,), None)] * 3


def test_alone_awake_the_first_worker_looks_into_all_lanes() -> None:
    crew = Crew(2, None)
    crew.become(17)
    crew.add([3, 1, 2])
    assert crew.share(0) == Share((1, 2, 3), 17)
    assert crew.share(1) == Share((), 17)


def test_awake_together_they_divide_the_lanes(crew: Crew) -> None:
    first, second = crew.share(0), crew.share(1)
    assert set(first.lanes) | set(second.lanes) == set(range(8))
    assert len(first.lanes) == len(second.lanes) == 4


def test_a_lane_with_a_batch_in_flight_is_left_out_until_that_is_finalised() -> None:
    crew = Crew(2, None)
    crew.become(17)
    crew.add(range(4))
    all_of_it = crew.share(0)
    crew.settled(0, all_of_it)  # claimed; now it is published
    crew.wake()
    assert crew.share(1).lanes == ()
    half = crew.share(0)
    assert crew.share(1).lanes == ()  # the first batch is not written down yet
    crew.settled(0, half)
    assert set(crew.share(1).lanes) == set(range(4)) - set(half.lanes)


def test_a_hint_ends_the_first_workers_rest() -> None:
    single = Crew(1, None)
    single.become(17)
    single.add([1])
    single.share(0)
    with in_thread(lambda: single.rest(0, 3600)) as thread:
        wait_until(lambda: not single.is_busy, 10, "the worker rests")
        assert thread.is_alive()
        single.hint()


def test_a_wake_ends_another_workers_rest(crew: Crew) -> None:
    with in_thread(lambda: crew.rest(1, 0)) as thread:
        wait_until(lambda: not crew.is_busy, 10, "the worker rests")
        assert crew.share(1).lanes == ()
        assert thread.is_alive()
        crew.wake()
    assert crew.is_busy


def test_a_hint_does_not_wake_the_others(crew: Crew) -> None:
    with in_thread(lambda: crew.rest(1, 0)) as thread:
        wait_until(lambda: not crew.is_busy, 10, "the worker rests")
        crew.hint()
        assert thread.is_alive()
        assert crew.share(1).lanes == ()
        crew.wake()


def test_nobody_rests_once_it_is_stopped(crew: Crew) -> None:
    with in_thread(lambda: crew.rest(1, 0)):
        wait_until(lambda: not crew.is_busy, 10, "the worker rests")
        crew.stop()
    crew.rest(0, 3600)
    crew.rest(1, 3600)


def test_the_first_worker_rests_no_longer_than_it_wanted(crew: Crew) -> None:
    crew.rest(0, 0.0)


def test_lanes_are_removed_once_nothing_of_them_is_in_flight(crew: Crew) -> None:
    share = crew.share(0)
    crew.settled(0, share)
    removed: list[bool] = []
    with in_thread(lambda: removed.append(crew.remove(share.lanes[:1], 3600))) as thread:
        wait_until(lambda: share.lanes[0] not in crew.lanes, 10, "no new claim from that lane")
        again = crew.share(0)
        assert share.lanes[0] not in again.lanes
        assert thread.is_alive()
        crew.settled(0, again)
    assert removed == [True]


def test_a_rest_lets_go_of_lanes_too(crew: Crew) -> None:
    share = crew.share(0)
    crew.settled(0, share)
    crew.rest(0, 0.0)
    assert crew.remove(share.lanes, 0.0)


def test_what_is_in_flight_for_too_long_is_not_removed(crew: Crew) -> None:
    share = crew.share(0)
    assert not crew.remove(share.lanes[:1], 0.0)
    assert crew.remove(set(range(8)) - set(share.lanes), 0.0)


def test_lanes_and_token_change_together(crew: Crew) -> None:
    crew.become(18)
    assert crew.holder == 18
    assert crew.lanes == ()
    assert crew.share(0) == Share((), 18)
    crew.add([5])
    assert crew.share(0) == Share((5,), 18)


def test_it_is_busy_while_somebody_helps_or_something_is_in_flight() -> None:
    crew = Crew(2, None)
    crew.add([1])
    seen = [crew.is_busy]
    crew.settled(0, crew.share(0))
    seen.append(crew.is_busy)
    crew.rest(0, 0.0)
    seen.append(crew.is_busy)
    crew.wake()
    seen.append(crew.is_busy)
    assert seen == [False, True, False, True]


class Unhurried(threading.Condition):
    """Nobody waits: so any interleaving of workers can be played in one thread."""

    def wait_for(self, predicate: Callable[[], T], timeout: float | None = None) -> T:
        return predicate()


WORKERS = 3
WORKER = st.integers(0, WORKERS - 1)
LANES = st.sets(st.integers(0, 7), max_size=8)


class CrewMachine(RuleBasedStateMachine):
    """Workers as `worker.pipeline` has them, in any interleaving, and the keeper in between."""

    @initialize(lanes=LANES)
    def start(self, lanes: set[int]) -> None:
        self.crew = Crew(WORKERS, None)
        self.crew._changed = Unhurried()
        self.crew.become(1)
        self.crew.add(lanes)
        self.holder = 1
        self.awake = {0}
        self.looking: list[Share | None] = [None] * WORKERS
        self.in_flight: list[frozenset[int]] = [frozenset()] * WORKERS

    def used(self, worker: int) -> frozenset[int]:
        share = self.looking[worker]
        return self.in_flight[worker] | frozenset(share.lanes if share else ())

    # Workers --------------------------------------------------------------------------------

    @rule(worker=WORKER)
    def look(self, worker: int) -> None:
        """Also again, after the store did not answer."""
        if worker not in self.awake:
            return
        share = self.crew.share(worker)
        assert set(share.lanes) <= set(self.crew.lanes)
        assert share.holder == self.holder
        self.looking[worker] = share

    @rule(worker=WORKER)
    def claimed(self, worker: int) -> None:
        """The last batch is finalised, and the next one is ours, in one transaction."""
        share = self.looking[worker]
        if share is not None:
            self.crew.settled(worker, share)
            self.in_flight[worker], self.looking[worker] = frozenset(share.lanes), None

    @rule(worker=WORKER)
    def finalised(self, worker: int) -> None:
        self.crew.settled(worker, NOTHING)
        self.in_flight[worker], self.looking[worker] = frozenset(), None

    @rule(worker=WORKER)
    def rest(self, worker: int) -> None:
        """The claim found nothing."""
        if worker not in self.awake or self.looking[worker] is not None:
            return
        self.crew.rest(worker, 0.0)
        self.in_flight[worker] = frozenset()
        self.awake -= {worker} - {0}

    @rule()
    def wake(self) -> None:
        self.crew.wake()
        self.awake = set(range(WORKERS))

    # The keeper -----------------------------------------------------------------------------

    @rule(lanes=LANES)
    def add(self, lanes: set[int]) -> None:
        before = set(self.crew.lanes)
        self.crew.add(lanes)
        assert self.crew.lanes == tuple(sorted(before | lanes))

    @rule(lanes=LANES)
    def remove(self, lanes: set[int]) -> None:
        is_gone = self.crew.remove(lanes, 0.0)
        assert not lanes & set(self.crew.lanes)
        if is_gone:
            assert not any(lanes & self.used(worker) for worker in range(WORKERS))

    @precondition(lambda self: self.holder < 5)
    @rule()
    def become(self) -> None:
        self.holder += 1
        self.crew.become(self.holder)

    # What must hold -------------------------------------------------------------------------

    @invariant()
    def no_lane_is_in_use_by_two(self) -> None:
        for one, other in combinations(range(WORKERS), 2):
            assert not self.used(one) & self.used(other)

    @invariant()
    def whoever_has_something_in_flight_is_busy(self) -> None:
        assert self.crew.is_busy or not any(self.used(w) for w in range(WORKERS))

    def teardown(self) -> None:
        """When all is written down, every lane is looked into by somebody."""
        for worker in range(WORKERS):
            self.finalised(worker)
        shares = [self.crew.share(worker).lanes for worker in range(WORKERS)]
        assert sorted(lane for lanes in shares for lane in lanes) == list(self.crew.lanes)


def test_lc_24_in_any_interleaving_no_lane_is_in_use_by_two_workers() -> None:
    run_state_machine_as_test(
        CrewMachine,
        settings=settings(max_examples=150, stateful_step_count=40, deadline=None),
    )


# A token that is changed ---------------------------------------------------------------------


def test_after_a_lost_connection_the_process_goes_on_under_another_token() -> None:
    crew = Crew(2, None)
    crew.become(7)
    crew.add([1, 2, 3])
    asked: list[tuple[int, int]] = []

    def fence(token: int, fresh: int) -> bool:
        asked.append((token, fresh))
        return True

    fresh = crew.fenced(7, fence)
    assert asked == [(7, fresh)]
    assert crew.share(0) == Share((1, 2, 3), fresh)
    # Another worker lost its connection at the same time: its claims are fenced already.
    assert crew.fenced(7, fence) == fresh
    assert len(asked) == 1
    assert fresh is not None
    assert crew.fenced(fresh, fence) not in (7, fresh, None)


def test_a_fence_whose_answer_was_lost_is_asked_for_again_with_the_same_token() -> None:
    crew = Crew(1, None)
    crew.become(7)
    asked: list[int] = []

    def lose(token: int, fresh: int) -> bool:
        asked.append(fresh)
        raise StoreUnavailable("the connection is lost")

    with pytest.raises(StoreUnavailable):
        crew.fenced(7, lose)
    assert (crew.is_in_doubt, crew.holder) == (True, 7)
    assert crew.fenced(7, lambda _, fresh: fresh == asked[0]) == asked[0]
    assert (crew.is_in_doubt, crew.holder) == (False, asked[0])


def test_who_holds_other_lanes_by_now_has_nothing_to_fence() -> None:
    crew = Crew(1, None)
    crew.become(7)
    fresh = crew.fenced(7, lambda *_: True)
    assert fresh is not None
    crew.become(9)
    assert crew.fenced(7, lambda *_: True) is None
    assert crew.fenced(fresh, lambda *_: True) is None
    assert crew.fenced(9, lambda *_: False) is None
    assert crew.holder == 9


def test_the_token_does_not_change_while_the_keeper_uses_it() -> None:
    crew = Crew(1, None)
    crew.become(7)
    with crew.steady() as holder:
        assert holder == 7
        thread = threading.Thread(target=lambda: crew.fenced(7, lambda *_: True))
        thread.start()
        thread.join(0.1)
        assert crew.holder == 7
    thread.join()
    assert crew.holder not in (7, None)

"""Parking: who takes nothing now, for how long, and who is the first to try again."""

import pytest

from outbox_core.model.attempt import LONGEST_RETRY_AFTER_SECONDS
from outbox_relay.publishers.parking import (
    FORGET_AFTER_SECONDS,
    LONGEST_ABSENCE_SECONDS,
    LONGEST_FAIR_PAUSE_SECONDS,
    RELAPSE_SECONDS,
    RETURNS_PER_SECOND,
    TRIALS_SHARE,
    Parking,
    Trial,
    TurnedAway,
)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def parking(clock: Clock) -> Parking:
    return Parking(clock)


def test_who_never_failed_is_sent_to(parking: Parking) -> None:
    assert not parking
    assert parking.admit("orders") is None
    assert parking.well("orders") is None
    assert parking.parked() == []


def test_who_failed_waits_and_others_do_not(parking: Parking, clock: Clock) -> None:
    assert parking.sick("orders", "no replicas")
    assert parking
    clock.now += 0.25
    assert parking.admit("orders") == TurnedAway()
    assert parking.turn_away("orders", 1) == 0.25
    assert parking.admit("payments") is None


def test_after_the_pause_one_caller_tries_and_the_others_wait(
    parking: Parking, clock: Clock
) -> None:
    parking.sick("orders", "no replicas")
    clock.now += 0.5
    assert parking.admit("orders") == Trial(patience=2.0)
    assert parking.admit("orders") == TurnedAway()
    assert parking.turn_away("orders", 1) == 0.5


def test_the_pause_doubles_with_each_trial_up_to_its_limit(parking: Parking, clock: Clock) -> None:
    parking.sick("orders", "no replicas")
    pauses, patience = [], []
    for _ in range(8):
        assert parking.admit("orders") == TurnedAway()
        pauses.append(parking.turn_away("orders", 0))
        clock.now += pauses[-1]
        trial = parking.admit("orders")
        assert isinstance(trial, Trial)
        patience.append(trial.patience)
        assert not parking.sick("orders", "still none")
    assert pauses == [0.5, 1, 2, 4, 8, 15, 15, 15]
    assert patience == [2, 2, 2, 4, 8, 15, 15, 15]


def fail_trial(parking: Parking, name: str, cost: float) -> None:
    parking.charge({name: cost})
    parking.sick(name, "still silent")


def held_share(parking: Parking, clock: Clock, costs: dict[str, float], seconds: float) -> float:
    """Of one worker's time, if each trial holds it for so long, and no two at once."""
    for name in costs:
        parking.sick(name, "silent")
    began, held = clock.now, 0.0
    while clock.now - began < seconds:
        for name, cost in costs.items():
            if isinstance(parking.admit(name), Trial):
                clock.now += cost
                held += cost
                fail_trial(parking, name, cost)
        clock.now += 0.1
    return held / (clock.now - began)


@pytest.mark.parametrize("count", [1, 3, 5])
def test_trials_together_take_their_share_of_a_workers_time(clock: Clock, count: int) -> None:
    parking = Parking(clock, brief_patience=0.5)
    costs = {f"endpoint {n}": 0.5 for n in range(count)}
    assert 0.01 < held_share(parking, clock, costs, 3600) <= TRIALS_SHARE * 1.1


def test_those_who_were_tried_together_are_due_together(clock: Clock) -> None:
    parking = Parking(clock, brief_patience=0.5)
    names = [f"endpoint {n}" for n in range(10)]
    for name in names:
        parking.sick(name, "silent")
    clock.now += 0.7
    pauses = []
    for _ in range(6):
        assert {parking.admit(name) for name in names} == {Trial(0.5)}
        parking.charge(dict.fromkeys(names, 0.05))
        for name in names:
            parking.sick(name, "silent")
            clock.now += 0.001
        pauses.append(parking.turn_away(names[0], 0))
        clock.now += pauses[-1] + 0.2
    assert 9.5 <= pauses[0] <= 10.5  # their share
    assert 15 <= pauses[-1] <= 16  # the usual pause is longer by then


def test_a_trial_that_costs_nothing_is_made_as_often_as_ever(clock: Clock) -> None:
    parking = Parking(clock)
    parking.sick("refuses", "connection refused")
    for _ in range(10):
        clock.now += 20
        parking.admit("refuses")
        fail_trial(parking, "refuses", 0.001)
    assert parking.turn_away("refuses", 0) == 15


def test_however_many_are_silent_each_is_tried_within_a_minute(clock: Clock) -> None:
    parking = Parking(clock, brief_patience=0.5)
    for n in range(100):
        parking.sick(f"endpoint {n}", "silent")
    clock.now += 1
    for n in range(100):
        assert parking.admit(f"endpoint {n}") == Trial(0.5)
        fail_trial(parking, f"endpoint {n}", 0.5)
    assert parking.turn_away("endpoint 99", 0) == LONGEST_FAIR_PAUSE_SECONDS


def test_who_is_well_again_costs_the_others_no_patience(clock: Clock) -> None:
    parking = Parking(clock, brief_patience=0.5)
    for name in ("a", "b"):
        parking.sick(name, "silent")
    clock.now += 1
    for name in ("a", "b"):
        parking.admit(name)
        fail_trial(parking, name, 1.0)
    assert parking.turn_away("b", 0) == pytest.approx(38)
    parking.well("a")
    clock.now += 38
    parking.admit("b")
    fail_trial(parking, "b", 1.0)
    assert parking.turn_away("b", 0) == pytest.approx(19)


def test_who_falls_silent_again_at_once_is_left_alone_for_longer(
    parking: Parking, clock: Clock
) -> None:
    """It answers one request, and not the flood that follows."""
    parking.sick("overloaded", "silent", cost=15.0)
    assert parking.turn_away("overloaded", 0) == 0.5  # the first time
    parking.well("overloaded")
    clock.now += 15
    parking.sick("overloaded", "silent again", cost=15.0)
    assert parking.turn_away("overloaded", 0) == LONGEST_FAIR_PAUSE_SECONDS
    clock.now += LONGEST_FAIR_PAUSE_SECONDS
    assert isinstance(parking.admit("overloaded"), Trial)
    parking.well("overloaded")
    clock.now += RELAPSE_SECONDS + 1
    parking.sick("overloaded", "another time", cost=15.0)
    parking.parked()
    assert parking.turn_away("overloaded", 0) == 0.5


def test_the_end_of_an_older_call_makes_no_pause_longer(parking: Parking, clock: Clock) -> None:
    parking.sick("orders", "no replicas")
    clock.now += 0.25
    assert not parking.sick("orders", "no replicas, said another worker")
    assert parking.turn_away("orders", 0) == 0.25


def test_an_answer_ends_it_and_the_next_time_begins_with_the_shortest_pause(
    parking: Parking, clock: Clock
) -> None:
    for _ in range(4):
        parking.sick("orders", "no replicas")
        clock.now += 20
        parking.admit("orders")
    known = parking.well("orders")
    assert known is not None
    assert known == ("orders", 80.0, "no replicas")
    assert not parking
    assert parking.sick("orders", "no leader")
    assert parking.turn_away("orders", 0) == 0.5


def test_a_trial_that_told_nothing_is_made_again_after_the_same_pause(
    parking: Parking, clock: Clock
) -> None:
    parking.sick("orders", "no replicas")
    clock.now += 0.5
    parking.admit("orders")
    parking.undecided("orders")
    assert parking.turn_away("orders", 0) == 0.5
    clock.now += 0.5
    assert isinstance(parking.admit("orders"), Trial)


def test_a_trial_whose_blame_comes_later_counts_as_one(parking: Parking, clock: Clock) -> None:
    parking.sick("orders", "no replicas")
    clock.now += 0.5
    parking.admit("orders")
    parking.undecided("orders")
    parking.sick("orders", "and the broker answers")
    assert parking.turn_away("orders", 0) == 1.0


def test_who_asks_for_patience_is_left_alone_for_so_long(parking: Parking, clock: Clock) -> None:
    parking.sick("orders", "429", after=40.0)
    clock.now += 39.0
    assert parking.admit("orders") == TurnedAway()
    assert parking.turn_away("orders", 1) == 1.0
    clock.now += 1.0
    assert parking.admit("orders") == Trial(patience=2.0)  # by the pause, which was short
    parking.sick("orders", "429", after=0.25)
    clock.now += 0.5
    assert parking.admit("orders") == TurnedAway()  # the pause grows as ever
    clock.now += 0.5
    assert isinstance(parking.admit("orders"), Trial)


def test_patience_that_is_asked_for_late_counts_too(parking: Parking, clock: Clock) -> None:
    parking.sick("orders", "no answer")
    parking.sick("orders", "429, said another worker's call", after=40.0)
    clock.now += 39.0
    assert parking.admit("orders") == TurnedAway()


def test_nobody_is_parked_for_longer_than_an_hour(parking: Parking, clock: Clock) -> None:
    parking.sick("orders", "429", after=10.0**9)
    clock.now += LONGEST_RETRY_AFTER_SECONDS
    assert isinstance(parking.admit("orders"), Trial)


def test_nothing_is_undecided_about_who_is_well(parking: Parking) -> None:
    parking.undecided("orders")
    assert parking.admit("orders") is None


def test_those_who_are_turned_away_come_back_one_after_another(
    parking: Parking, clock: Clock
) -> None:
    parking.sick("orders", "no replicas")
    batch = RETURNS_PER_SECOND // 2
    assert [parking.turn_away("orders", batch) for _ in range(3)] == [0.5, 1.0, 1.5]
    clock.now += 2.0
    assert parking.turn_away("orders", batch) == 0.0  # nobody is before them
    assert parking.turn_away("orders", 10**7) == 0.5
    assert parking.turn_away("orders", 1) == LONGEST_ABSENCE_SECONDS


def test_nobody_is_turned_away_for_long_from_who_has_just_answered(parking: Parking) -> None:
    assert parking.turn_away("orders", 100) == 0.0


def test_people_see_the_longest_parked_first(parking: Parking, clock: Clock) -> None:
    parking.sick("b", "one")
    parking.sick("a", "two")
    clock.now += 3
    parking.sick("c", "three")
    assert parking.parked() == [("a", 3.0, "two"), ("b", 3.0, "one"), ("c", 0.0, "three")]


def test_who_is_never_tried_again_is_forgotten(parking: Parking, clock: Clock) -> None:
    parking.sick("orders", "no replicas")
    clock.now += FORGET_AFTER_SECONDS + 1
    assert parking.parked() == []
    assert not parking

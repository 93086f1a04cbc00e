"""The low watermark: a claim starts above what is worked off, and skips nothing for good."""

from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outbox_core.store.deliveries import Mark
from outbox_relay.worker.watermark import (
    FAR_AHEAD_SEQS,
    MARK_EVERY_SECONDS,
    SWEEP_SELDOM_SECONDS,
    SWEEP_SHARE,
    SWEEP_SOON_SECONDS,
    Watermark,
)

TICK = 1.25 * MARK_EVERY_SECONDS


class Look(NamedTuple):
    floor: int
    found: list[int]


class World:
    """A clock, and as much of a database as a watermark hears of."""

    def __init__(self) -> None:
        self.now = 0.0
        self.seq = 0
        self.xid = 100
        self.server = datetime(2026, 1, 1, tzinfo=UTC)
        self.open: dict[int, int] = {}
        self.in_line: set[int] = set()
        self.watermark = Watermark(lambda: self.now)
        self.swept_at = 0.0
        self.sweep_took = 0.0

    def begin(self, jump: int = 1) -> int:
        """A transaction gets its id, and then draws a seq."""
        self.xid += 1
        self.seq += jump
        self.open[self.xid] = self.seq
        return self.xid

    def commit(self, xid: int) -> int:
        seq = self.open.pop(xid)
        self.in_line.add(seq)
        return seq

    def emit(self, jump: int = 1) -> int:
        return self.commit(self.begin(jump))

    def mark(self) -> Mark:
        self.xid += 1
        return Mark(self.seq, self.xid, min([*self.open, self.xid]), self.server)

    def look(self, limit: int = 1000, took: float = 0.0) -> Look:
        """A claim, as a worker makes it."""
        floor = self.watermark.floor()
        mark = self.mark() if self.watermark.wants_mark else None
        counts = floor if self.watermark.server == self.server else 0  # as a claim takes it
        found = sorted(seq for seq in self.in_line if seq > counts)[:limit]
        self.in_line -= set(found)
        self.now += took
        self.watermark.saw(floor, found[0] if found else None, mark, took)
        if floor == 0:
            self.swept_at, self.sweep_took = self.now, took
        return Look(floor, found)


@pytest.fixture
def world() -> World:
    return World()


def test_it_starts_at_the_beginning(world: World) -> None:
    world.emit()
    assert world.look() == (0, [1])


def test_it_moves_up_to_what_was_first_in_line(world: World) -> None:
    for _ in range(10):
        world.emit()
    assert world.look(limit=5).found == [1, 2, 3, 4, 5]
    assert world.look(limit=5) == (0, [6, 7, 8, 9, 10])
    world.emit()
    assert world.look() == (5, [11])


def test_a_late_commit_below_the_mark_is_not_skipped(world: World) -> None:
    late = world.begin()
    for _ in range(20):
        world.emit()
        world.now += TICK
        assert world.look().floor == 0
    world.commit(late)
    assert world.look() == (0, [1])


def test_a_transaction_that_began_just_before_the_mark_holds_it(world: World) -> None:
    late = world.begin()
    world.look()  # the mark's own transaction is the next one
    world.emit()
    world.look()
    assert world.look().floor == 0
    world.commit(late)
    assert world.look().found == [1]


def test_it_moves_up_when_the_last_transaction_below_the_mark_has_ended(world: World) -> None:
    late = world.begin()
    for _ in range(3):
        world.emit()
        world.now += TICK
        world.look()
    del world.open[late]  # rolled back
    floors = []
    for _ in range(3):
        world.emit()
        world.now += TICK
        floors.append(world.look().floor)
    assert floors == [0, 4, 5]


def test_a_transaction_that_began_after_the_mark_does_not_hold_it(world: World) -> None:
    for _ in range(3):
        world.emit()
    world.look()  # marked: every transaction that drew up to 3 has ended
    world.begin()
    world.emit()
    world.now += TICK
    world.look()
    assert world.watermark.floor() == 3


def test_marks_are_asked_for_at_a_pace_and_not_in_silence(world: World) -> None:
    asked = [world.watermark.wants_mark]
    world.emit()
    world.look()
    asked.append(world.watermark.wants_mark)  # too soon
    world.now += TICK
    asked.append(world.watermark.wants_mark)
    world.look()
    world.now += 100 * TICK
    asked.append(world.watermark.wants_mark)  # nothing was in line
    world.emit()
    world.look()
    asked.append(world.watermark.wants_mark)
    assert asked == [True, False, True, False, True]


def test_other_lanes_are_looked_at_from_the_beginning(world: World) -> None:
    for _ in range(3):
        world.emit()
        world.look()
    assert world.watermark.floor() > 0
    world.watermark.reset()
    assert world.watermark.floor() == 0


def lagging(world: World) -> None:
    """A transaction stays open, and more went by than one wants to step over each time."""
    world.begin()
    world.look()
    for _ in range(3):
        world.emit(FAR_AHEAD_SEQS)
        world.look()
    assert world.watermark.floor() > FAR_AHEAD_SEQS


def test_far_behind_an_open_transaction_it_starts_ahead(world: World) -> None:
    lagging(world)
    assert world.watermark.floor() == 3 * FAR_AHEAD_SEQS


def test_what_a_start_ahead_skipped_is_swept_up_soon(world: World) -> None:
    lagging(world)
    world.commit(next(iter(world.open)))
    assert world.look().found == []
    world.now += SWEEP_SOON_SECONDS + 0.01
    assert world.look() == (0, [1])


def test_what_a_start_ahead_skipped_is_swept_up_soon_also_while_others_go_on(world: World) -> None:
    lagging(world)
    world.commit(next(iter(world.open)))
    found: list[int] = []
    while world.now <= SWEEP_SOON_SECONDS + TICK:  # the mark sees that the transaction has ended
        world.emit()
        found += world.look().found
        world.now += TICK
    assert 1 in found


def test_what_a_dead_relay_left_in_line_is_swept_up_some_day(world: World) -> None:
    for _ in range(3):
        world.emit()
        world.now += TICK
        world.look()
    assert world.watermark.floor() == 2
    world.in_line.add(1)  # the claim that had it was rolled back
    assert world.look().found == []
    world.now += SWEEP_SELDOM_SECONDS + 0.01
    assert world.look() == (0, [1])


@pytest.mark.parametrize("took", [0.001, 0.01, 0.1, 1.0, 10.0])
def test_sweeps_take_at_most_their_share_of_the_time(world: World, took: float) -> None:
    lagging(world)
    start, sweeping, sweeps = world.now, 0.0, 0
    while sweeps < 20:
        world.emit()
        is_sweep = world.watermark.floor() == 0
        world.look(took=took if is_sweep else 0.0)
        world.now += max(took, 0.01)
        if is_sweep and sweeps == 0:
            start = world.now  # the first one shows how long they take
        sweeping += took if is_sweep and sweeps else 0.0
        sweeps += is_sweep
    assert sweeping / (world.now - start) <= SWEEP_SHARE * 1.01


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["begin", "emit", "commit", "roll back", "look", "look", "wait"]),
        st.integers(0, 1_000_000),
    ),
    max_size=80,
)


def step(world: World, what: str, number: int, jump: int) -> Look | None:
    match what:
        case "begin":
            world.begin(1 + number % jump)
        case "emit":
            world.emit(1 + number % jump)
        case "commit" | "roll back" if world.open:
            seq = world.commit(sorted(world.open)[number % len(world.open)])
            if what == "roll back":
                world.in_line.discard(seq)
        case "look":
            return world.look(limit=1 + number % 5, took=number % 7 * 0.01)
        case "wait":
            world.now += (0.01, MARK_EVERY_SECONDS, SWEEP_SOON_SECONDS, 5.0)[number % 4]
    return None


@settings(deadline=None, max_examples=300)
@given(STEPS)
def test_while_nothing_is_far_behind_nothing_is_ever_skipped(steps: list[tuple[str, int]]) -> None:
    world = World()
    for what, number in steps:
        looked = step(world, what, number, jump=3)
        if looked is not None:
            skipped = [s for s in (*world.in_line, *world.open.values()) if s <= looked.floor]
            assert skipped == []


@settings(deadline=None, max_examples=300)
@given(STEPS)
def test_whatever_is_skipped_is_swept_up_within_a_bounded_time(
    steps: list[tuple[str, int]],
) -> None:
    world = World()
    for what, number in steps:
        before = world.now
        patience = max(SWEEP_SOON_SECONDS, world.sweep_took / SWEEP_SHARE)
        is_due = before - world.swept_at > patience + 1e-9
        looked = step(world, what, number, jump=4 * FAR_AHEAD_SEQS)
        if looked is not None and any(seq <= looked.floor for seq in world.in_line):
            assert not is_due


def test_em_18_the_later_event_of_a_key_is_not_found_before_the_earlier_one(world: World) -> None:
    world.watermark = Watermark(lambda: world.now, in_order=True)
    slow = world.begin()  # a producer emits an event of a key, and goes on working
    for _ in range(3):
        world.emit(FAR_AHEAD_SEQS)  # others, of other keys
        world.look()
    earlier = world.commit(slow)
    later = world.emit()  # of the same key: it could not be drawn before `slow` had ended
    found: list[int] = []
    while len(found) < 2:
        found += world.look().found
        world.now += 0.1
    assert found == [earlier, later]


def test_nothing_is_known_of_another_server() -> None:
    """After a failover the same seqs are handed out again; behind a pooler this goes unnoticed."""
    world = World()
    for _ in range(5):
        world.emit()
        world.now += TICK
        world.look()
    assert world.watermark.floor() > 0
    assert world.watermark.server == world.server
    world.server += timedelta(hours=1)
    world.seq = 1
    behind = world.begin()
    world.now += TICK
    world.emit()
    assert world.look().found == [3]
    assert world.watermark.floor() < 2  # what is still to be committed lies below
    world.commit(behind)
    world.now += TICK
    assert world.look().found == [2]
    assert world.watermark.server == world.server

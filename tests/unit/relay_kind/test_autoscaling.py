"""How many pods: every rule of the autoscaler, without a clock; then all of them at work."""

from collections import deque
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import pairwise

import pytest

from fixtures.made_seen import NOW, report
from outbox_operator.relay.decide.autoscaling import (
    CEILING_TIME,
    LONGEST_DOUBT,
    TRIAL_TIME,
    Load,
    Scale,
    ScaleMemory,
    scale,
)
from outbox_operator.relay.decide.backlog import lag_of, load_of
from outbox_operator.relay.spec.autoscaling import Autoscaling
from outbox_operator.shared.reasons import Reason

WANTED = Autoscaling(
    min_replicas=1,
    max_replicas=4,
    target_lag_seconds=30,
    scale_up_stabilization=timedelta(seconds=15),
    scale_down_stabilization=timedelta(minutes=5),
)
CALM = Load(lag=0, pending=0, rate=10, store_share=0.1, healthy=True, pods=9)
LATE = Load(lag=60, pending=1000, rate=100, store_share=0.3, healthy=True, pods=9)
SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)


def up(wanted: Autoscaling, current: int, ready: int, memory: ScaleMemory, at: datetime) -> Scale:
    """It is late for so long that the rate is known."""
    first = scale(wanted, current, ready, LATE, memory, at - MINUTE)
    return scale(wanted, current, ready, LATE, replace(first.memory, high_since=at - MINUTE), at)


def after_up() -> Scale:
    """One pod was late for long enough: there are two now."""
    return up(WANTED, 1, 1, ScaleMemory(), NOW)


def test_a_short_burst_needs_no_pod() -> None:
    decision = scale(WANTED, 1, 1, LATE, ScaleMemory(), NOW)
    assert decision.replicas == 1
    again = scale(WANTED, 1, 1, CALM, decision.memory, NOW + 10 * SECOND)
    assert again.memory.high_since is None
    longer = scale(WANTED, 1, 1, LATE, decision.memory, NOW + 15 * SECOND)
    assert longer.replicas == 2


def test_up_when_the_oldest_event_waits_for_too_long() -> None:
    decision = after_up()
    assert decision.replicas == 2
    assert "60 s" in decision.message
    assert "target is 30 s" in decision.message


def test_up_when_the_backlog_would_take_too_long() -> None:
    load = replace(LATE, lag=1, pending=10_000, rate=100)
    memory = scale(WANTED, 1, 1, load, ScaleMemory(), NOW).memory
    decision = scale(WANTED, 1, 1, load, memory, NOW + 15 * SECOND)
    assert decision.replicas == 2
    assert "100 s" in decision.message


def test_many_grow_by_half() -> None:
    wanted = WANTED.model_copy(update={"max_replicas": 100})
    memory = ScaleMemory(high_since=NOW - 60 * SECOND)
    assert scale(wanted, 10, 10, LATE, memory, NOW).replicas == 15


def test_new_pods_are_waited_for_before_more_are_added() -> None:
    added = after_up()
    at = NOW + 300 * SECOND
    decision = scale(WANTED, 2, 1, LATE, added.memory, at)
    assert (decision.replicas, decision.reason) == (2, Reason.SCALING)


def test_pods_that_helped_are_followed_by_more() -> None:
    added = after_up()
    at = NOW + 60 * SECOND
    ready = scale(WANTED, 2, 2, LATE, added.memory, at)
    faster = replace(LATE, rate=190)
    decision = scale(WANTED, 2, 2, faster, ready.memory, at + TRIAL_TIME)
    assert decision.replicas == 3


def test_pods_that_did_not_help_go_and_are_not_tried_again_for_a_while() -> None:
    added = after_up()
    at = NOW + 60 * SECOND
    ready = scale(WANTED, 2, 2, LATE, added.memory, at)
    decision = scale(WANTED, 2, 2, LATE, ready.memory, at + TRIAL_TIME)
    assert (decision.replicas, decision.reason) == (1, Reason.MORE_PODS_DO_NOT_HELP)
    held = scale(WANTED, 1, 1, LATE, decision.memory, at + TRIAL_TIME + 60 * SECOND)
    assert (held.replicas, held.reason) == (1, Reason.MORE_PODS_DO_NOT_HELP)
    later = scale(WANTED, 1, 1, LATE, held.memory, at + TRIAL_TIME + CEILING_TIME)
    assert later.replicas == 2


def test_never_up_while_pods_wait_for_the_database() -> None:
    memory = ScaleMemory(high_since=NOW - 60 * SECOND)
    busy = replace(LATE, store_share=0.9)
    decision = scale(WANTED, 1, 1, busy, memory, NOW)
    assert (decision.replicas, decision.reason) == (1, Reason.MORE_PODS_DO_NOT_HELP)
    assert "90%" in decision.message


def test_never_up_while_store_or_broker_is_away() -> None:
    memory = ScaleMemory(high_since=NOW - 60 * SECOND)
    decision = scale(WANTED, 1, 1, replace(LATE, healthy=False), memory, NOW)
    assert (decision.replicas, decision.reason) == (1, Reason.PODS_NOT_READY)


def test_never_up_while_no_pod_reports() -> None:
    decision = scale(WANTED, 1, 1, None, ScaleMemory(high_since=NOW - MINUTE), NOW)
    assert (decision.replicas, decision.reason) == (1, Reason.NO_REPORT)


def test_never_above_the_maximum() -> None:
    memory = ScaleMemory(high_since=NOW - 60 * SECOND)
    decision = scale(WANTED, 4, 4, LATE, memory, NOW)
    assert (decision.replicas, decision.reason) == (4, Reason.AT_MAXIMUM)


def test_down_one_by_one_and_slowly() -> None:
    first = scale(WANTED, 3, 3, CALM, ScaleMemory(), NOW)
    assert first.replicas == 3
    almost = scale(WANTED, 3, 3, CALM, first.memory, NOW + 299 * SECOND)
    assert almost.replicas == 3
    down = scale(WANTED, 3, 3, CALM, almost.memory, NOW + 300 * SECOND)
    assert down.replicas == 2
    soon = scale(WANTED, 2, 2, CALM, down.memory, NOW + 301 * SECOND)
    assert soon.replicas == 2


def test_never_below_the_minimum() -> None:
    memory = ScaleMemory(low_since=NOW - timedelta(hours=1))
    assert scale(WANTED, 1, 1, CALM, memory, NOW).replicas == 1


def test_neither_up_nor_down_in_between() -> None:
    between = replace(CALM, lag=20)
    memory = ScaleMemory(low_since=NOW - timedelta(hours=1))
    decision = scale(WANTED, 2, 2, between, memory, NOW)
    assert decision.replicas == 2
    assert decision.memory.low_since is None


def test_bounds_that_were_changed_count_at_once() -> None:
    assert scale(WANTED, 9, 9, CALM, ScaleMemory(), NOW).replicas == 4
    wanted = WANTED.model_copy(update={"min_replicas": 3})
    assert scale(wanted, 1, 1, None, ScaleMemory(), NOW).replicas == 3


# What is remembered --------------------------------------------------------------------------

SIX = WANTED.model_copy(update={"max_replicas": 6})


def test_without_an_honest_rate_before_there_is_no_verdict_but_time_to_settle() -> None:
    early = scale(SIX, 1, 1, LATE, ScaleMemory(high_since=NOW - 15 * SECOND), NOW)
    assert early.replicas == 2
    ready = scale(SIX, 2, 2, LATE, early.memory, NOW + 10 * SECOND)
    settling = scale(SIX, 2, 2, LATE, ready.memory, NOW + 70 * SECOND)
    assert settling.replicas == 2
    second = scale(SIX, 2, 2, LATE, settling.memory, NOW + 10 * SECOND + TRIAL_TIME)
    assert second.replicas == 3
    at = NOW + 100 * SECOND
    ready = scale(SIX, 3, 3, LATE, second.memory, at)
    judged = scale(SIX, 3, 3, LATE, ready.memory, at + TRIAL_TIME)
    assert (judged.replicas, judged.reason) == (2, Reason.MORE_PODS_DO_NOT_HELP)


def test_there_is_no_verdict_while_a_pod_is_silent() -> None:
    added = after_up()
    ready = scale(SIX, 2, 2, LATE, added.memory, NOW)
    one = replace(LATE, pods=1)
    waiting = scale(SIX, 2, 2, one, ready.memory, NOW + TRIAL_TIME)
    assert (waiting.replicas, waiting.reason) == (2, Reason.SCALING)
    given_up = scale(SIX, 2, 2, one, waiting.memory, NOW + 2 * TRIAL_TIME)
    assert given_up.reason != Reason.MORE_PODS_DO_NOT_HELP


def test_a_sick_pod_is_not_waited_for() -> None:
    added = up(SIX, 4, 3, ScaleMemory(), NOW)
    assert added.replicas == 6
    waiting = scale(SIX, 6, 4, LATE, added.memory, NOW + SECOND)
    assert waiting.memory.trial is not None
    assert waiting.memory.trial.ready_at is None
    ready = scale(SIX, 6, 5, LATE, added.memory, NOW + 2 * SECOND)
    assert ready.memory.trial is not None
    assert ready.memory.trial.ready_at == NOW + 2 * SECOND


def test_a_number_that_did_not_help_is_remembered_on_the_way_down_and_up() -> None:
    added = up(SIX, 4, 4, ScaleMemory(), NOW)
    ready = scale(SIX, 6, 6, LATE, added.memory, NOW)
    at = NOW + TRIAL_TIME
    back = scale(SIX, 6, 6, LATE, ready.memory, at)
    assert back.replicas == 4
    calm = scale(SIX, 4, 4, CALM, back.memory, at)
    at += WANTED.scale_down_stabilization
    down = scale(SIX, 4, 4, CALM, calm.memory, at)
    assert down.replicas == 3
    at += MINUTE
    again = up(SIX, 3, 3, down.memory, at)
    assert again.replicas == 4
    ready = scale(SIX, 4, 4, LATE, again.memory, at)
    at += TRIAL_TIME
    held = scale(SIX, 4, 4, replace(LATE, rate=200), ready.memory, at)
    assert (held.replicas, held.reason) == (4, Reason.MORE_PODS_DO_NOT_HELP)
    wanted = SIX.model_copy(update={"max_replicas": 3})
    assert scale(wanted, 4, 4, LATE, held.memory, at).memory.ceiling == 4


def test_no_step_goes_beyond_what_did_not_help() -> None:
    memory = ScaleMemory(ceiling=5, ceiling_until=NOW + CEILING_TIME)
    assert up(SIX, 4, 4, memory, NOW).replicas == 5


def test_fewer_pods_that_were_too_few_are_tried_half_as_often_every_time() -> None:
    memory, at = ScaleMemory(), NOW
    waits: list[timedelta] = []
    for _ in range(6):
        begin = at
        decision = scale(SIX, 2, 2, CALM, memory, at)
        while decision.replicas == 2:
            at += MINUTE
            decision = scale(SIX, 2, 2, CALM, decision.memory, at)
        waits.append(at - begin)
        at += 5 * MINUTE
        added = up(SIX, 1, 1, decision.memory, at)
        assert added.replicas == 2
        memory = added.memory
    assert [wait / MINUTE for wait in waits] == [5, 10, 20, 40, 60, 60]


def test_the_message_shows_when_fewer_pods_are_tried() -> None:
    memory = ScaleMemory(needed=2, returns=1)
    assert "10m" in scale(SIX, 2, 2, CALM, memory, NOW).message


def test_a_lesson_is_forgotten_when_fewer_pods_are_enough() -> None:
    memory = ScaleMemory(needed=3, returns=1, left=3, low_since=NOW)
    held = scale(SIX, 2, 2, CALM, memory, NOW + 5 * MINUTE)
    assert held.replicas == 2
    down = scale(SIX, 2, 2, CALM, held.memory, NOW + 10 * MINUTE)
    assert (down.replicas, down.memory.needed, down.memory.returns) == (1, None, 0)


def test_many_returns_are_no_longer_than_the_longest() -> None:
    memory = ScaleMemory(needed=2, returns=100_000, low_since=NOW - LONGEST_DOUBT)
    assert scale(SIX, 2, 2, CALM, memory, NOW).replicas == 1


# All of it at work ---------------------------------------------------------------------------


@dataclass
class Plant:
    """Pods that share a database. Of each second it is known what they did; reports tell averages
    over a minute, as those of relays do."""

    one: float
    """What a pod publishes in a second, if nothing else is the limit."""
    database: float
    """What the database takes in a second, of all of them."""
    replicas: int = 1
    waiting: float = 0.0
    memory: ScaleMemory = field(default_factory=ScaleMemory)
    second: int = 0
    done: deque[tuple[float, float, float]] = field(default_factory=lambda: deque(maxlen=60))
    """Published, and the shares of store and publishing, of each of the last seconds."""
    chosen: list[int] = field(default_factory=list)

    def run(self, seconds: int, arriving: float) -> list[int]:
        """The numbers of pods that were chosen meanwhile."""
        begin = len(self.chosen)
        for _ in range(seconds):
            self.work(arriving)
            if self.second % 10 == 0:
                self.look(arriving)
        return self.chosen[begin:]

    def work(self, arriving: float) -> None:
        self.waiting += arriving
        able = self.replicas * self.one
        published = min(self.waiting, able, self.database)
        self.waiting -= published
        queued = 1 - self.database / able if able > self.database else 0.0
        busy = published / min(able, self.database)
        self.done.append((published, busy * queued, busy * (1 - queued)))
        self.second += 1

    def look(self, arriving: float) -> None:
        n = len(self.done)
        reports = [
            report(
                pending=int(self.waiting),
                lag=self.waiting / arriving if arriving else 0.0,
                rate=sum(d[0] for d in self.done) / n / self.replicas,
                busy=(sum(d[1] for d in self.done) / n, sum(d[2] for d in self.done) / n),
            )
            for _ in range(self.replicas)
        ]
        now = NOW + self.second * SECOND
        decision = scale(TEN, self.replicas, self.replicas, load_of(reports), self.memory, now)
        self.replicas, self.memory = decision.replicas, decision.memory
        self.chosen.append(self.replicas)


TEN = WANTED.model_copy(update={"max_replicas": 10})


def test_a_burst_brings_as_many_pods_as_it_needs() -> None:
    plant = Plant(one=100, database=10_000)
    assert set(plant.run(600, arriving=10)) == {1}
    assert max(plant.run(1200, arriving=450)) >= 5


def test_never_up_when_the_database_is_the_bottleneck() -> None:
    """Also in the first seconds of a burst, of which a minute's averages know little."""
    plant = Plant(one=1000, database=150)
    assert set(plant.run(600, arriving=10)) == {1}
    assert set(plant.run(3600, arriving=300)) == {1}


def test_a_limit_that_pods_do_not_feel_is_found_and_kept() -> None:
    """A pod more is too many; the next ones are seen not to help, and go."""
    plant = Plant(one=100, database=110)
    plant.run(600, arriving=10)
    chosen = plant.run(1200, arriving=300)
    assert max(chosen) <= 3
    assert chosen[-1] == 2
    assert max(chosen[-30:]) == 2


def test_a_steady_load_does_not_make_pods_come_and_go_for_ever() -> None:
    plant = Plant(one=100, database=10_000, replicas=3)
    chosen = plant.run(24 * 3600, arriving=250)
    changes = sum(a != b for a, b in pairwise(chosen[-12 * 360 :]))  # of the last twelve hours
    assert changes <= 4 * 12
    assert sum(n >= 3 for n in chosen[-12 * 360 :]) > 0.8 * 12 * 360


# What reports say of it ----------------------------------------------------------------------


def test_nobody_reports_no_load() -> None:
    assert load_of([]) is None


def test_a_load_is_put_together_from_all_reports() -> None:
    one = report(pending=50, lag=12.0, rate=10, busy=(0.1, 0.3))
    other = report(pending=50, lag=12.0, rate=5, busy=(0.3, 0.1))
    assert load_of([one, other]) == Load(
        lag=12.0, pending=50, rate=15, store_share=0.5, healthy=True, pods=2
    )


def test_the_share_of_the_database_is_of_work_and_not_of_time() -> None:
    """A quarter of a minute into a burst that waits for nothing else."""
    load = load_of([report(busy=(0.225, 0.025))])
    assert load is not None
    assert load.store_share == pytest.approx(0.9)


@pytest.mark.parametrize("busy", [None, (0.0, 0.0)])
def test_the_share_of_the_database_is_not_known(busy: tuple[float, float] | None) -> None:
    load = load_of([report(busy=busy)])
    assert load is not None
    assert load.store_share is None


@pytest.mark.parametrize(
    ("sick", "of", "healthy"), [(1, 5, True), (1, 2, True), (2, 3, False), (1, 1, False)]
)
def test_one_sick_pod_among_healthy_ones_stops_nothing(sick: int, of: int, healthy: bool) -> None:
    reports = [report(troubles={"store": "away"} if n < sick else None) for n in range(of)]
    load = load_of(reports)
    assert load is not None
    assert load.healthy is healthy


def test_without_a_backlog_the_store_does_not_answer() -> None:
    load = load_of([report(backlog=False)])
    assert load is not None
    assert not load.healthy


def test_a_young_pod_has_a_short_memory() -> None:
    young, old = report(), report()
    young = young.model_copy(update={"rates": young.rates.model_copy(update={"seconds": 20.0})})
    silent = old.model_copy(update={"rates": old.rates.model_copy(update={"seconds": 0.0})})
    assert [load.window for r in (young, old, silent) if (load := load_of([r]))] == [
        20 * SECOND, MINUTE, MINUTE,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0, "0s"), (0.9, "0s"), (59, "59s"), (119, "119s"), (120, "2m"), (7199, "119m"), (7200, "2h"),
     (172_799, "47h"), (172_800, "2d")],
)  # fmt: skip
def test_a_lag_is_shown_in_its_largest_unit(seconds: float, shown: str) -> None:
    assert lag_of(report(lag=seconds).backlog) == shown


def test_an_unknown_lag_is_not_shown() -> None:
    assert lag_of(None) is None

"""How many pods: every rule of the autoscaler, without a clock."""

from dataclasses import replace
from datetime import timedelta

from fixtures.made_seen import NOW
from outbox_operator.decide.autoscaling import CEILING, TRIAL, Load, Memory, Scale, scale
from outbox_operator.resources.autoscaling import Autoscaling
from outbox_operator.resources.conditions import Reason

WANTED = Autoscaling(
    min_replicas=1,
    max_replicas=4,
    target_lag_seconds=30,
    scale_up_stabilization=timedelta(seconds=15),
    scale_down_stabilization=timedelta(minutes=5),
)
CALM = Load(lag=0, pending=0, rate=10, store_share=0.1, well=True)
LATE = Load(lag=60, pending=1000, rate=100, store_share=0.3, well=True)
SECOND = timedelta(seconds=1)


def after_up() -> Scale:
    """One pod was late for long enough: there are two now."""
    first = scale(WANTED, 1, 1, LATE, Memory(), NOW)
    return scale(WANTED, 1, 1, LATE, first.memory, NOW + 15 * SECOND)


def test_a_short_burst_needs_no_pod() -> None:
    decision = scale(WANTED, 1, 1, LATE, Memory(), NOW)
    assert decision.replicas == 1
    again = scale(WANTED, 1, 1, CALM, decision.memory, NOW + 10 * SECOND)
    assert again.memory.high_since is None


def test_up_when_the_oldest_event_waits_for_too_long() -> None:
    decision = after_up()
    assert decision.replicas == 2
    assert "60 s" in decision.message
    assert "target is 30 s" in decision.message


def test_up_when_the_backlog_would_take_too_long() -> None:
    load = replace(LATE, lag=1, pending=10_000, rate=100)
    memory = scale(WANTED, 1, 1, load, Memory(), NOW).memory
    decision = scale(WANTED, 1, 1, load, memory, NOW + 15 * SECOND)
    assert decision.replicas == 2
    assert "100 s" in decision.message


def test_many_grow_by_half() -> None:
    wanted = WANTED.model_copy(update={"max_replicas": 100})
    memory = Memory(high_since=NOW - 60 * SECOND)
    assert scale(wanted, 10, 10, LATE, memory, NOW).replicas == 15


def test_new_pods_are_waited_for_before_more_are_added() -> None:
    up = after_up()
    at = NOW + 300 * SECOND
    decision = scale(WANTED, 2, 1, LATE, up.memory, at)
    assert (decision.replicas, decision.reason) == (2, Reason.SCALING)


def test_pods_that_helped_are_followed_by_more() -> None:
    up = after_up()
    at = NOW + 60 * SECOND
    ready = scale(WANTED, 2, 2, LATE, up.memory, at)
    faster = replace(LATE, rate=190)
    decision = scale(WANTED, 2, 2, faster, ready.memory, at + TRIAL)
    assert decision.replicas == 3


def test_pods_that_did_not_help_go_and_are_not_tried_again_for_a_while() -> None:
    up = after_up()
    at = NOW + 60 * SECOND
    ready = scale(WANTED, 2, 2, LATE, up.memory, at)
    decision = scale(WANTED, 2, 2, LATE, ready.memory, at + TRIAL)
    assert (decision.replicas, decision.reason) == (1, Reason.STORE_IS_THE_LIMIT)
    held = scale(WANTED, 1, 1, LATE, decision.memory, at + TRIAL + 60 * SECOND)
    assert (held.replicas, held.reason) == (1, Reason.STORE_IS_THE_LIMIT)
    later = scale(WANTED, 1, 1, LATE, held.memory, at + TRIAL + CEILING)
    assert later.replicas == 2


def test_never_up_while_pods_wait_for_the_database() -> None:
    memory = Memory(high_since=NOW - 60 * SECOND)
    busy = replace(LATE, store_share=0.9)
    decision = scale(WANTED, 1, 1, busy, memory, NOW)
    assert (decision.replicas, decision.reason) == (1, Reason.STORE_IS_THE_LIMIT)
    assert "90%" in decision.message


def test_never_up_while_store_or_broker_is_away() -> None:
    memory = Memory(high_since=NOW - 60 * SECOND)
    for load in (None, replace(LATE, well=False)):
        assert scale(WANTED, 1, 1, load, memory, NOW).replicas == 1


def test_never_above_the_maximum() -> None:
    memory = Memory(high_since=NOW - 60 * SECOND)
    decision = scale(WANTED, 4, 4, LATE, memory, NOW)
    assert (decision.replicas, decision.reason) == (4, Reason.AT_MAXIMUM)


def test_down_one_by_one_and_slowly() -> None:
    first = scale(WANTED, 3, 3, CALM, Memory(), NOW)
    assert first.replicas == 3
    almost = scale(WANTED, 3, 3, CALM, first.memory, NOW + 299 * SECOND)
    assert almost.replicas == 3
    down = scale(WANTED, 3, 3, CALM, almost.memory, NOW + 300 * SECOND)
    assert down.replicas == 2
    soon = scale(WANTED, 2, 2, CALM, down.memory, NOW + 301 * SECOND)
    assert soon.replicas == 2


def test_never_below_the_minimum() -> None:
    memory = Memory(low_since=NOW - timedelta(hours=1))
    assert scale(WANTED, 1, 1, CALM, memory, NOW).replicas == 1


def test_neither_up_nor_down_in_between() -> None:
    between = replace(CALM, lag=20)
    memory = Memory(low_since=NOW - timedelta(hours=1))
    decision = scale(WANTED, 2, 2, between, memory, NOW)
    assert decision.replicas == 2
    assert decision.memory.low_since is None


def test_bounds_that_were_changed_count_at_once() -> None:
    assert scale(WANTED, 9, 9, CALM, Memory(), NOW).replicas == 4
    wanted = WANTED.model_copy(update={"min_replicas": 3})
    assert scale(wanted, 1, 1, None, Memory(), NOW).replicas == 3

"""A paused replay is left as it is, and people hear of the begin and the end of a pause, once."""

from typing import Any

from fixtures.made_replays import after, around, child, driver, report, running, started
from fixtures.made_resources import outbox_relay, outbox_replay
from fixtures.made_seen import NOW, leaving
from outbox_operator.replay.decide.children import decide_replay_children, only_removals
from outbox_operator.replay.decide.step import (
    Cancel,
    Follow,
    Start,
    Suspend,
    as_paused,
    decide_step,
)
from outbox_operator.replay.spec.resource import OutboxReplay, ReplayStatus
from outbox_operator.replay.status import decide_replay_status
from outbox_operator.settings import OperatorSettings
from outbox_operator.shared.pausing import RECONCILE, is_paused, pause_notices, what_pauses

OURS = {("Job", "again-1"): child(), ("RoleBinding", "again-replay"): child()}


def annotated(resource: Any, value: str = "paused") -> Any:
    meta = resource.metadata.model_copy(update={"annotations": {RECONCILE: value}})
    return resource.model_copy(update={"metadata": meta})


def test_one_value_pauses_and_a_deletion_ends_it() -> None:
    assert is_paused(annotated(outbox_relay()))
    assert not is_paused(annotated(outbox_relay(), "Paused"))
    assert not is_paused(leaving(annotated(outbox_relay())))


def test_start_and_end_are_announced_once() -> None:
    paused, free = annotated(outbox_relay()), outbox_relay()
    assert [n.reason for n in pause_notices(paused, False, None)] == ["ReconcilePaused"]
    assert pause_notices(paused, True, None) == pause_notices(free, False, None) == []
    assert [n.reason for n in pause_notices(free, True, None)] == ["ReconcileResumed"]


def test_an_unknown_value_is_announced_once() -> None:
    odd = annotated(outbox_relay(), "yes")
    (told,) = pause_notices(odd, False, None)
    assert (told.reason, told.warning) == ("AnnotationUnknown", True)
    assert pause_notices(odd, False, "yes") == []


def removed(replay: OutboxReplay, seen: Any) -> tuple[Any, list[tuple[str, str]]]:
    """The step, and what it removes."""
    step = decide_step(as_paused(replay) if is_paused(replay) else replay, seen, NOW)
    children = decide_replay_children(replay, seen, step, OperatorSettings())
    if held := what_pauses(replay):
        children = only_removals(children, step, held)
    return step, children.unwanted


def test_an_attempt_that_runs_goes_on_though_it_is_suspended_meanwhile() -> None:
    replay = after(running(), suspend=True)
    seen = around(driver(running=True, report=report()), children=OURS)
    assert isinstance(removed(replay, seen)[0], Suspend)
    step, gone = removed(annotated(replay), seen)
    assert isinstance(step, Follow)
    assert gone == []
    status = decide_replay_status(replay, step, (), NOW, what_pauses(annotated(replay)))
    assert status.phase == "Running"
    assert "outbox.dev/reconcile-" in (status.message or "")


def test_one_that_is_deleted_is_ended_all_the_same() -> None:
    replay = annotated(after(running(), deleted=True))
    step, gone = removed(replay, around(driver(running=True), children=OURS))
    assert isinstance(step, Cancel)
    assert gone == [("Job", "again-1")]


def test_no_attempt_is_started() -> None:
    replay = annotated(outbox_replay())
    step = decide_step(as_paused(replay), around(), NOW)
    assert isinstance(step, Start)
    status = decide_replay_status(replay, step, (), NOW, what_pauses(replay))
    assert status.attempts is None
    assert {c.type: c.reason for c in status.conditions}["Accepted"] == "ReconcilePaused"


def test_rights_go_when_no_driver_is_left() -> None:
    replay = after(started(), suspend=True)
    stopping = removed(replay, around(driver(running=True), children=OURS))[1]
    assert stopping == [("Job", "again-1")]
    suspended = after(ReplayStatus(phase="Suspended"), suspend=True)
    assert removed(suspended, around(children=OURS))[1] == list(OURS)

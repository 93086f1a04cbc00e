"""Events of a replay: every phase and every attempt, and what is in its way."""

from datetime import timedelta

from fixtures.made_replays import (
    after,
    around,
    child,
    driver,
    ended,
    looked,
    report,
    running,
    started,
)
from fixtures.made_resources import outbox_replay
from fixtures.made_seen import NOW
from outbox_operator.replay.events import decide_replay_notices
from outbox_operator.replay.spec.resource import ReplayStatus

SOON = NOW + timedelta(seconds=11)
AGAIN = report("Failed", reason="StoreUnreachable", message="the database is away")


def told(before: ReplayStatus, now_is: ReplayStatus) -> list[tuple[str, bool]]:
    return [(n.reason, n.warning) for n in decide_replay_notices(before, now_is)]


def test_nothing_new_is_not_announced() -> None:
    assert told(started(), started()) == []
    assert told(running(), running()) == []


def test_an_ordinary_replay_is_announced_phase_by_phase() -> None:
    planning = looked(after(started()), around(driver(running=True), job=child()))
    done = report("Succeeded", matched=200, replayed=200, message="200 of 200")
    succeeded = looked(after(running()), around(ended(0, done), job=child()))
    assert told(ReplayStatus(), started()) == [("AttemptStarted", False)]
    assert told(started(), planning) == [("Planning", False)]
    assert told(planning, running()) == [("Running", False)]
    assert told(running(), succeeded) == [("Succeeded", False)]


def test_a_failed_attempt_and_the_next_one_are_announced() -> None:
    waiting = looked(after(running()), around(ended(1, AGAIN), job=child()))
    second = looked(after(waiting), around(ended(1, AGAIN), job=child()), SOON)
    (notice,) = decide_replay_notices(running(), waiting)
    assert (notice.reason, notice.warning) == ("AttemptFailed", True)
    assert "the database is away" in notice.message
    assert told(waiting, second) == [("AttemptStarted", False)]


def test_the_end_of_one_that_failed_is_announced_with_its_reason() -> None:
    failed = looked(after(running(), backoffLimit=0), around(ended(1, AGAIN), job=child()))
    assert told(running(), failed) == [("BackoffLimitExceeded", True)]
    assert told(failed, failed) == []


def test_suspending_and_resuming_are_announced() -> None:
    suspended = looked(after(running(), suspend=True), around(driver(running=True), job=child()))
    resumed = looked(after(suspended), around(), SOON)
    assert told(running(), suspended) == [("Suspended", False)]
    assert told(suspended, resumed) == [("Resumed", False), ("AttemptStarted", False)]


def test_what_is_missing_is_announced_once() -> None:
    held = looked(outbox_replay(), around(relay=None))
    assert told(ReplayStatus(), held) == [("RelayMissing", True)]
    assert told(held, held) == []


def test_a_deletion_midway_is_announced() -> None:
    cancelled = looked(after(running(), deleted=True), around(job=child()))
    assert told(running(), cancelled) == [("Cancelled", False)]

"""A driver's pod as the API server describes it, and what we make of it."""

from datetime import UTC, datetime
from typing import Any

from fixtures.made_replays import report
from outbox_operator.replay.seen import Driver, Ended


def body(state: dict[str, Any] | None = None, **status: Any) -> dict[str, Any]:
    if state is not None:
        sidecar = {"name": "proxy", "state": {"running": {}}}
        status["containerStatuses"] = [sidecar, {"name": "spark-kubernetes-driver", "state": state}]
    labels = {"outbox.dev/attempt": "2"}
    return {"metadata": {"name": "again-2-x", "labels": labels}, "status": status}


def test_a_pod_that_is_just_made_neither_runs_nor_has_ended() -> None:
    found = Driver.of(body(), None)
    assert (found.attempt, found.running, found.ended) == (2, False, None)


def test_a_running_driver_has_its_report() -> None:
    found = Driver.of(body({"running": {}}, phase="Running"), report())
    assert (found.running, found.report) == (True, report())


def test_last_words_are_read_of_one_that_ended_well_too() -> None:
    words = report("Succeeded", matched=3, replayed=3)
    ended = {"exitCode": 0, "reason": "Completed", "message": words.termination_message()}
    found = Driver.of(body({"terminated": ended}, phase="Succeeded"), None)
    assert found.ended == Ended(0, "Completed", words)
    assert not found.running


def test_what_is_not_a_report_is_no_last_word() -> None:
    ended = {"exitCode": 127, "reason": "StartError", "message": "exec: driver: not found"}
    assert Driver.of(body({"terminated": ended}), None).ended == Ended(127, "StartError", None)


def test_a_pod_that_was_evicted_before_it_ran_has_ended() -> None:
    found = Driver.of(body(phase="Failed", reason="Evicted"), None)
    assert found.ended == Ended(None, "Evicted", None)


def test_one_that_was_asked_to_stop_shows_its_deadline() -> None:
    made = body({"running": {}})
    made["metadata"]["deletionTimestamp"] = "2026-03-01T12:00:30Z"
    assert Driver.of(made, None).kill_deadline == datetime(2026, 3, 1, 12, 0, 30, tzinfo=UTC)

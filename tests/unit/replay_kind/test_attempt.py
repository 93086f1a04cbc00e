"""One attempt at a replay: what its end means, and what is in its way."""

from datetime import timedelta
from typing import Any

import pytest

from fixtures.made_replays import after, around, child, driver, ended, job_that, report, started
from fixtures.made_seen import NOW, pod
from outbox_operator.replay.decide.attempt import Going, Over, Starting, judge_attempt
from outbox_operator.replay.seen import Driver, ReplaySeen
from outbox_operator.replay.spec.resource import OutboxReplay
from outbox_operator.shared.seen import Waiting

REPLAY = after(started())
ON_SPARK = after(started().model_copy(update={"engine": "SparkApplication"}))
LONG_AGO = NOW - timedelta(minutes=10)


def over(seen: ReplaySeen, replay: OutboxReplay = REPLAY) -> Over:
    found = judge_attempt(replay, seen, NOW)
    assert isinstance(found, Over)
    return found


# Without last words ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("exit_code", "cause"),
    [(127, "StartError"), (128, "StartError"), (126, "Error"), (2, "Error"), (0, "Completed")],
)
def test_an_image_without_the_program_is_reported_and_not_tried_again(
    exit_code: int, cause: str
) -> None:
    found = over(around(ended(exit_code, None, cause), job=child()))
    assert (found.verdict, found.finding.reason) == ("Final", "DriverMissing")
    assert "spec.pod.image" in found.finding.message
    assert f"ended with {exit_code} ({cause})" in found.finding.message


@pytest.mark.parametrize(
    ("exit_code", "cause", "words"),
    [
        (1, "Error", "`kubectl logs -n shop again-1-x`"),
        (137, "OOMKilled", "(OOMKilled, SIGKILL) without a report of its end; raise"),
        (139, "Error", "ended with 139 (Error, SIGSEGV)"),
        (None, "Evicted", "ended (Evicted)"),
        (None, "", "ended (its node is gone)"),
    ],
)
def test_a_driver_that_died_silently_is_tried_again(
    exit_code: int | None, cause: str, words: str
) -> None:
    found = over(around(ended(exit_code, None, cause), job=child()))
    assert (found.verdict, found.finding.reason) == ("Again", "DriverLost")
    assert words in found.finding.message


@pytest.mark.parametrize("exit_code", [137, 1, 2, 0])
def test_a_driver_that_was_killed_midway_is_tried_again_and_its_figures_are_kept(
    exit_code: int,
) -> None:
    words = report("Running", matched=200, replayed=60, message="giving events back")
    found = over(around(ended(exit_code, words), job=child()))
    assert (found.verdict, found.finding.reason) == ("Again", "DriverLost")
    assert "without a report of its end" in found.finding.message
    assert found.report == words


def test_a_driver_that_was_killed_while_it_stopped_was_stopped() -> None:
    words = report("Stopped", matched=200, replayed=60)
    assert over(around(ended(137, words), job=child())).verdict == "Stopped"


# What its owner says -----------------------------------------------------------------------------


def test_a_job_that_is_complete_has_succeeded_though_its_pod_is_gone() -> None:
    assert over(around(job=job_that("Complete"))).verdict == "Done"


def test_a_job_that_failed_and_lost_its_pod_is_tried_again() -> None:
    found = over(around(job=job_that("Failed")))
    assert (found.verdict, found.finding.reason) == ("Lost", "DriverLost")
    assert "it has reached its limit" in found.finding.message


def test_the_termination_message_of_a_pod_is_waited_for_when_its_job_has_just_ended() -> None:
    just_now = job_that("Failed", at=NOW - timedelta(seconds=1))
    assert judge_attempt(REPLAY, around(job=just_now), NOW) == Starting(None)
    seen = around(driver(running=True), job=job_that("Failed"))
    assert isinstance(judge_attempt(REPLAY, seen, NOW), Going)


def test_a_pod_whose_node_is_gone_is_not_waited_for() -> None:
    stuck = driver(running=True, kill_deadline=NOW - timedelta(seconds=30))
    assert over(around(stuck, job=job_that("Failed"))).verdict == "Lost"


def test_a_child_that_is_being_deleted_is_lost() -> None:
    job = child()
    job["metadata"]["deletionTimestamp"] = "2026-03-01T12:00:00Z"
    assert over(around(job=job)).verdict == "Lost"


def application(state: str, error: str = "", **given: Any) -> dict[str, Any]:
    return child(applicationState={"state": state, "errorMessage": error}, **given)


def test_a_spark_application_that_could_not_be_submitted_is_tried_again_with_its_words() -> None:
    long = "stack trace " * 100 + "pods is forbidden: exceeded quota"
    found = over(around(application=application("FAILED", long)), ON_SPARK)
    assert (found.verdict, found.finding.reason) == ("Again", "EngineFailed")
    assert "exceeded quota" in found.finding.message
    assert len(found.finding.message) < 700


def test_a_spark_application_that_is_complete_has_succeeded() -> None:
    assert over(around(application=application("COMPLETED")), ON_SPARK).verdict == "Done"


@pytest.mark.parametrize("state", ["", "SUBMITTED", "RUNNING", "SUBMISSION_FAILED", "FAILING"])
def test_other_states_of_a_spark_application_are_waited_for(state: str) -> None:
    seen = around(application=application(state))
    assert judge_attempt(ON_SPARK, seen, NOW) == Starting(None)


def test_the_drivers_words_count_more_than_its_owners() -> None:
    words = report("Failed", reason="TooManyEvents", message="612 events match")
    seen = around(ended(2, words), application=application("FAILED", "driver container failed"))
    assert over(seen, ON_SPARK).finding.reason == "TooManyEvents"


# What is in its way ------------------------------------------------------------------------------


def stuck(reason: str, message: str) -> Driver:
    waiting = (Waiting("spark-kubernetes-driver", reason, message),)
    return Driver(pod("again-1-x", ready=False, waiting=waiting), 1)


@pytest.mark.parametrize(
    ("seen", "reason", "words"),
    [
        (
            around(stuck("ImagePullBackOff", "not found"), job=child()),
            "ImageNotPulled",
            "another OutboxReplay",
        ),
        (
            around(stuck("CreateContainerConfigError", "couldn't find key dsn"), job=child()),
            "SecretMalformed",
            "couldn't find key dsn",
        ),
        (
            around(Driver(pod("again-1-x", unschedulable="0/3 nodes"), 1), job=child()),
            "PodsNotScheduled",
            "0/3 nodes",
        ),
        (
            around(job=child(LONG_AGO)),
            "PodsNotCreated",
            "kubectl describe job -n shop again-1",
        ),
    ],
)
def test_a_driver_that_cannot_start_shows_why(seen: ReplaySeen, reason: str, words: str) -> None:
    found = judge_attempt(REPLAY, seen, NOW)
    assert isinstance(found, Starting)
    assert found.finding is not None
    assert found.finding.reason == reason
    assert words in found.finding.message


@pytest.mark.parametrize(
    ("state", "reason", "words"),
    [
        ("", "NoEngine", "namespace shop"),
        ("SUBMITTED", "PodsNotCreated", "kubectl describe sparkapplication -n shop again-1"),
    ],
)
def test_a_spark_application_that_no_operator_accepts_is_shown(
    state: str, reason: str, words: str
) -> None:
    seen = around(application=application(state, made=LONG_AGO))
    found = judge_attempt(ON_SPARK, seen, NOW)
    assert isinstance(found, Starting)
    assert found.finding is not None
    assert found.finding.reason == reason
    assert words in found.finding.message


def test_a_pod_that_is_just_coming_is_no_trouble() -> None:
    assert judge_attempt(REPLAY, around(job=child()), NOW) == Starting(None)
    assert judge_attempt(REPLAY, around(driver(), job=child()), NOW) == Starting(None)


def test_executors_without_a_node_are_shown_while_none_works() -> None:
    lost = pod("again-1-exec-1", ready=False, unschedulable="0/3 nodes")
    works = pod("again-1-exec-2")
    going = judge_attempt(REPLAY, around(driver(running=True), job=child(), executors=[lost]), NOW)
    assert isinstance(going, Going)
    assert going.finding is not None
    assert going.finding.reason == "PodsNotScheduled"
    seen = around(driver(running=True), job=child(), executors=[lost, works])
    assert judge_attempt(REPLAY, seen, NOW) == Going(None, None)

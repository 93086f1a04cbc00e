"""A replay from look to look: which step follows, and what its status then says."""

from datetime import timedelta
from typing import Any

import pytest

from fixtures.made_replays import (
    REGISTERED,
    after,
    around,
    child,
    driver,
    ended,
    job_that,
    looked,
    report,
    running,
    started,
)
from fixtures.made_resources import outbox_relay, outbox_replay
from fixtures.made_seen import NOW, leaving
from outbox_operator.replay.decide.step import (
    LONGEST_RETRY_PAUSE,
    Follow,
    Leave,
    Start,
    Suspend,
    Wait,
    choose_engine,
    decide_step,
    pause,
)
from outbox_operator.replay.seen import ReplaySeen
from outbox_operator.replay.spec.resource import ReplayStatus
from outbox_operator.shared.conditions import Condition
from outbox_operator.shared.seen import Refusal, Secret

SOON = NOW + timedelta(seconds=11)
DONE = report("Succeeded", matched=200, replayed=198, skipped=2, skipped_because={"Claimed": 2})
AGAIN = report("Failed", reason="StoreUnreachable", message="the database is away")
FINAL = report("Failed", reason="SelectionInvalid", message="errorMatches: unbalanced parenthesis")
STOPPED = report("Stopped", matched=200, replayed=60)
FIGURES = "The figures are"
"""So begins the sentence that shows their time."""


def conditions(status: ReplayStatus) -> dict[str, Condition]:
    return {c.type: c for c in status.conditions}


def states(status: ReplayStatus) -> dict[str, str]:
    return {kind: c.status for kind, c in conditions(status).items()}


# The ordinary way --------------------------------------------------------------------------------


def test_the_first_reconcile_starts_the_first_attempt() -> None:
    assert decide_step(outbox_replay(), around(), NOW) == Start(1, "Job")
    found = started()
    assert (found.phase, found.attempts, found.application) == ("Pending", 1, "again-1")
    assert (found.engine, found.start_time) == ("Job", NOW)
    assert states(found) == {
        "Accepted": "True",
        "Suspended": "False",
        "Complete": "False",
        "Failed": "False",
        "Reconciling": "True",
        "Stalled": "False",
    }


def test_an_attempt_that_is_there_is_followed_and_no_second_one_is_made() -> None:
    seen = around(job=child())
    assert isinstance(decide_step(after(started()), seen, NOW), Follow)
    found = looked(after(started()), seen)
    assert (found.phase, found.attempts) == ("Pending", 1)
    assert "Job again-1" in (found.message or "")


def test_a_driver_that_has_not_reported_yet_is_planning() -> None:
    found = looked(after(started()), around(driver(running=True), job=child()))
    assert found.phase == "Planning"
    assert "again-1" in (found.message or "")


@pytest.mark.parametrize(
    ("stage", "phase"),
    [("Starting", "Planning"), ("Planning", "Planning"), ("Running", "Running")],
)
def test_the_stages_of_the_driver_are_phases(stage: str, phase: str) -> None:
    seen = around(driver(running=True, report=report(stage)), job=child())
    found = looked(after(started()), seen)
    assert (found.phase, conditions(found)["Complete"].reason) == (phase, phase)


def test_progress_is_shown_while_it_runs() -> None:
    found = running()
    assert (found.phase, found.matched, found.replayed) == ("Running", 200, 50)
    assert (found.percent, found.progress, found.rate) == (25, "25%", 10)
    assert found.eta == NOW + timedelta(seconds=15)


def test_an_estimate_that_holds_is_not_written_again() -> None:
    again = report(matched=200, replayed=60, rate=10.0, seconds_left=17)
    seen = around(driver(running=True, report=again), job=child())
    assert looked(after(running()), seen).eta == running().eta
    late = report(matched=200, replayed=60, rate=1.0, seconds_left=170)
    seen = around(driver(running=True, report=late), job=child())
    assert looked(after(running()), seen).eta == NOW + timedelta(seconds=170)


def test_a_driver_that_does_not_answer_for_a_moment_changes_nothing() -> None:
    found = looked(after(running()), around(driver(running=True), job=child()))
    assert found == running()


def test_it_succeeds_with_the_drivers_termination_message() -> None:
    found = looked(after(running()), around(ended(0, DONE, "Completed"), job=child()), SOON)
    assert (found.phase, found.completion_time) == ("Succeeded", SOON)
    assert (found.matched, found.replayed, found.skipped) == (200, 198, 2)
    assert found.skipped_because == {"Claimed": 2}
    assert (found.progress, found.rate, found.eta) == ("100%", None, None)
    assert states(found)["Complete"] == "True"
    assert states(found)["Failed"] == "False"


def test_one_whose_termination_message_is_lost_has_succeeded_with_unknown_figures() -> None:
    found = looked(after(running()), around(job=job_that("Complete")))
    assert (found.phase, found.progress, found.matched) == ("Succeeded", "100%", 200)
    assert (found.replayed, found.skipped) == (None, None)
    assert "`outbox-relay replays`" in (found.message or "")


def test_a_dry_run_whose_termination_message_is_lost_runs_again() -> None:
    before = after(started(dryRun=True), dryRun=True)
    found = looked(before, around(job=job_that("Complete")))
    assert (found.phase, found.failures) == ("Pending", 1)
    assert conditions(found)["Complete"].reason == "DriverLost"


def test_a_dry_run_completes_with_what_it_found() -> None:
    preview = {"keys": 7, "samples": ["a"], "warnings": ["3 were published before"]}
    words = report("Succeeded", matched=200, preview=preview, message="a dry run")
    seen = around(ended(0, words, "Completed"), job=child())
    found = looked(after(started(dryRun=True), dryRun=True), seen)
    assert (found.phase, found.matched, found.replayed, found.progress) == (
        "Succeeded", 200, None, None,
    )  # fmt: skip
    assert found.preview is not None
    assert found.preview.keys == 7
    assert states(found)["Complete"] == "True"


@pytest.mark.parametrize("phase", ["Succeeded", "Failed", "Cancelled"])
def test_what_is_finished_never_changes(phase: Any) -> None:
    before = running().model_copy(update={"phase": phase})
    for spec in ({}, {"suspend": True}):
        replay = after(before, **spec)
        assert decide_step(replay, around(), NOW) == Leave()
        assert looked(replay, around()) == before


def test_nothing_new_is_nothing_to_write() -> None:
    seen = around(job=child())
    first = looked(after(started()), seen)
    later = NOW + timedelta(seconds=20)
    assert looked(after(first), seen, later) == first


# Which engine ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "served", "engine"),
    [
        ({}, True, "SparkApplication"),
        ({}, False, "Job"),
        ({"engine": "Job"}, True, "Job"),
        ({"engine": "SparkApplication"}, True, "SparkApplication"),
        ({"executor": {"instances": 0}}, True, "Job"),
        ({"dryRun": True}, True, "Job"),
    ],
)
def test_the_engine_is_what_was_asked_for_or_what_the_cluster_has(
    spec: dict[str, Any], served: bool, engine: str
) -> None:
    assert choose_engine(outbox_replay(**spec), ReplaySeen(spark_operator=served)) == engine


# What must be so before anything is started ------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "seen", "reason", "words"),
    [
        ({}, around(relay=None), "RelayMissing", "no OutboxRelay orders in namespace shop"),
        ({}, around(relay=leaving(REGISTERED)), "RelayMissing", "being deleted"),
        ({}, around(relay=None, relay_invalid=True), "SpecInvalid", "kubectl describe"),
        ({}, around(relay=outbox_relay()), "RelayUnknown", "no ready pod"),
        (
            {},
            around(secrets=[Secret("orders-db", None)]),
            "SecretMissing",
            "no Secret orders-db in namespace shop: create it",
        ),
        (
            {"engine": "SparkApplication"},
            around(),
            "NoEngine",
            "sparkoperator.k8s.io/v1beta2",
        ),
        (
            {"engine": "SparkApplication", "dryRun": True},
            around(),
            "NoEngine",
            "sparkoperator.k8s.io/v1beta2",
        ),
    ],
)
def test_a_request_that_cannot_start_is_not_accepted_and_shows_why(
    spec: dict[str, Any], seen: ReplaySeen, reason: str, words: str
) -> None:
    found = looked(outbox_replay(**spec), seen)
    accepted = conditions(found)["Accepted"]
    assert (accepted.status, accepted.reason) == ("False", reason)
    assert words in accepted.message
    assert words in (found.message or "")
    assert (found.phase, found.attempts, found.start_time) == ("Pending", None, None)


def test_it_begins_when_what_was_missing_is_there() -> None:
    before = looked(outbox_replay(), around(relay=None))
    assert decide_step(after(before), around(), NOW) == Start(1, "Job")
    assert states(looked(after(before), around()))["Accepted"] == "True"


@pytest.mark.parametrize(
    ("refusal", "reason"),
    [
        (Refusal("ConfigMap", "again-replay", "it is not ours", taken=True), "NameTaken"),
        (Refusal("Job", "again-1", "exceeded quota: jobs"), "PodsNotCreated"),
    ],
)
def test_an_attempt_that_the_server_refuses_is_none(refusal: Refusal, reason: str) -> None:
    found = looked(outbox_replay(), around(), refusals=[refusal])
    assert (found.phase, found.attempts, found.application) == ("Pending", None, None)
    assert conditions(found)["Accepted"].reason == reason
    assert decide_step(after(found), around(), NOW) == Start(1, "Job")


def test_a_refusal_beside_a_running_attempt_is_shown_and_the_attempt_continues() -> None:
    seen = around(driver(running=True, report=report(matched=200, replayed=60)), job=child())
    refusal = Refusal("RoleBinding", "again-replay", "forbidden")
    found = looked(after(running()), seen, refusals=[refusal])
    assert (found.phase, found.attempts) == ("Running", 1)
    assert conditions(found)["Complete"].reason == "PodsNotCreated"
    assert isinstance(decide_step(after(found), seen, NOW), Follow)


# Failures ----------------------------------------------------------------------------------------


def test_a_failed_attempt_is_followed_by_another_after_a_pause() -> None:
    seen = around(ended(1, AGAIN), job=job_that("Failed"))
    found = looked(after(running()), seen)
    assert (found.phase, found.failures, found.attempts) == ("Pending", 1, 1)
    assert found.next_attempt_time == NOW + timedelta(seconds=10)
    assert "the database is away" in (found.message or "")
    assert conditions(found)["Complete"].reason == "StoreUnreachable"
    assert (found.matched, found.replayed) == (200, 50)  # what is known stays

    early = NOW + timedelta(seconds=5)
    assert isinstance(decide_step(after(found), seen, early), Wait)
    assert looked(after(found), seen, early) == found  # a failure is counted once

    assert decide_step(after(found), seen, SOON) == Start(2, "Job")
    second = looked(after(found), seen, SOON)
    assert (second.attempts, second.application) == (2, "again-2")
    assert (second.next_attempt_time, second.start_time) == (None, NOW)


def test_pauses_grow_up_to_some_minutes() -> None:
    seconds = [pause(n).total_seconds() for n in (0, 1, 2, 3, 4, 5, 6, 100)]
    assert seconds == [10, 10, 20, 40, 80, 160, 300, 300]
    assert pause(100) == LONGEST_RETRY_PAUSE


def test_after_as_many_failures_as_are_allowed_it_is_given_up() -> None:
    before = running().model_copy(update={"failures": 3, "attempts": 4, "application": "again-4"})
    seen = around(ended(1, AGAIN, attempt=4), job=child(), attempt=4)
    found = looked(after(before), seen)
    assert (found.phase, found.failures, found.completion_time) == ("Failed", 4, NOW)
    failed = conditions(found)["Failed"]
    assert (failed.status, failed.reason) == ("True", "BackoffLimitExceeded")
    assert "StoreUnreachable: the database is away" in failed.message


def test_without_retries_the_first_failure_is_the_end() -> None:
    seen = around(ended(1, AGAIN), job=child())
    assert looked(after(running(), backoffLimit=0), seen).phase == "Failed"


@pytest.mark.parametrize(
    ("reason", "message"),
    [
        ("SelectionInvalid", "errorMatches: unbalanced parenthesis"),
        ("TooManyEvents", "612 events match, maxEvents is 100"),
        ("WrongPassword", "the password is not accepted; correct the Secret"),
        ("RelayUnknown", "no relay of that name"),
    ],
)
def test_what_no_attempt_can_do_fails_at_once_with_the_drivers_reason(
    reason: str, message: str
) -> None:
    words = report("Failed", reason=reason, message=message)
    found = looked(after(started()), around(ended(2, words), job=child()))
    assert (found.phase, found.attempts, found.message) == ("Failed", 1, message)
    failed = conditions(found)["Failed"]
    assert (failed.status, failed.reason, failed.message) == ("True", reason, message)
    assert states(found)["Complete"] == "False"


@pytest.mark.parametrize(
    ("reason", "phase"),
    [
        ("WrongPassword", "Pending"),  # the secret is being changed
        ("LoginRefused", "Pending"),
        ("TlsFailed", "Pending"),  # certificates are being renewed
        ("SchemaTooNew", "Pending"),  # the next attempt may be of the new version
        ("RelayUnknown", "Failed"),
        ("Refused", "Failed"),
    ],
)
def test_what_passes_is_tried_again_once_an_attempt_was_let_in(reason: str, phase: str) -> None:
    before = running().model_copy(update={"attempts": 2, "application": "again-2"})
    words = report("Failed", reason=reason, message="no")
    found = looked(after(before), around(ended(2, words, attempt=2), job=child(), attempt=2))
    assert (found.phase, found.failures) == (phase, 1)


def test_a_driver_that_was_stopped_has_not_failed() -> None:
    before = running().model_copy(update={"failures": 3})
    found = looked(after(before), around(ended(143, STOPPED), job=job_that("Failed")))
    assert (found.phase, found.failures, found.replayed) == ("Pending", 3, 60)
    assert found.next_attempt_time is not None
    assert conditions(found)["Complete"].reason == "DriverLost"
    assert "again-1-x" in (found.message or "")


def test_an_attempt_that_somebody_deleted_is_followed_by_another() -> None:
    found = looked(after(running()), around())
    assert (found.phase, found.failures) == ("Pending", 1)
    assert conditions(found)["Complete"].reason == "DriverLost"
    assert "Job again-1" in (found.message or "")


def test_the_next_attempt_may_have_another_engine() -> None:
    waiting = looked(after(running()), around(ended(1, AGAIN), job=child()))
    seen = around(ended(1, AGAIN), spark_operator=True)
    assert decide_step(after(waiting), seen, SOON) == Start(2, "SparkApplication")


def test_an_obstacle_between_two_attempts_is_waited_for_and_nothing_is_counted_twice() -> None:
    waiting = looked(after(running()), around(ended(1, AGAIN), job=child()))
    held = looked(after(waiting), around(relay=None), SOON)
    again = looked(after(held), around(relay=None), SOON + timedelta(seconds=10))
    assert (held.failures, again.failures) == (1, 1)
    assert conditions(again)["Accepted"].reason == "RelayMissing"
    later = SOON + timedelta(seconds=20)
    assert decide_step(after(again), around(), later) == Start(2, "Job")


# Suspend and resume ------------------------------------------------------------------------------


def test_suspended_from_the_start_nothing_is_made() -> None:
    replay = outbox_replay(suspend=True)
    assert decide_step(replay, around(), NOW) == Suspend()
    found = looked(replay, around())
    assert (found.phase, found.attempts) == ("Suspended", None)
    assert states(found)["Suspended"] == "True"
    assert states(found)["Accepted"] == "Unknown"
    assert decide_step(after(found), around(), NOW) == Start(1, "Job")


def test_the_last_words_of_a_driver_count_although_its_pod_is_gone() -> None:
    """Its termination message is written in the moment in which the pod is deleted."""
    seen = around(driver(running=True, report=report(matched=200, replayed=70)), job=child())
    stopping = looked(after(running(), suspend=True), seen)
    words = report("Stopped", matched=200, replayed=90, final=True)
    gone = around(gone=[ended(143, words)])
    found = looked(after(stopping, suspend=True), gone, SOON)
    assert (found.phase, found.replayed) == ("Suspended", 90)
    assert "The figures are" not in (found.message or "")
    assert looked(after(found, suspend=True), around(), SOON) == found


def test_suspended_midway_it_keeps_what_is_done_and_goes_on_with_another_attempt() -> None:
    seen = around(driver(running=True, report=report(matched=200, replayed=70)), job=child())
    found = looked(after(running(), suspend=True), seen)
    assert (found.phase, found.failures, found.replayed) == ("Suspended", None, 70)
    assert (found.rate, found.eta) == (None, None)
    assert "spec.suspend" in conditions(found)["Suspended"].message
    assert looked(after(found, suspend=True), around(), SOON) == found

    assert decide_step(after(found), around(), SOON) == Start(2, "Job")
    resumed = looked(after(found), around(), SOON)
    assert (resumed.phase, resumed.attempts, resumed.failures) == ("Pending", 2, None)
    assert states(resumed)["Suspended"] == "False"


def test_a_resumed_replay_waits_until_the_old_driver_is_gone() -> None:
    suspended = looked(after(running(), suspend=True), around(driver(running=True), job=child()))
    old = driver(running=True, kill_deadline=NOW + timedelta(seconds=30))
    waiting = looked(after(suspended), around(old), SOON)
    assert (waiting.phase, waiting.attempts, waiting.failures) == ("Pending", 1, None)
    assert conditions(waiting)["Complete"].reason == "Pending"
    assert "again-1-x" in (waiting.message or "")
    assert decide_step(after(waiting), around(ended(143, STOPPED)), SOON) == Start(2, "Job")
    assert decide_step(after(waiting), around(), SOON) == Start(2, "Job")
    # A node that is gone never tells: the pod would have been killed long ago.
    much_later = NOW + timedelta(minutes=1)
    assert decide_step(after(waiting), around(old), much_later) == Start(2, "Job")


def test_an_attempt_that_was_created_but_not_reported_yet_is_followed() -> None:
    """An operator may end in between; the next one makes it again, and finds it there."""
    seen = around(driver(running=True), job=child())
    assert decide_step(outbox_replay(), seen, NOW) == Start(1, "Job")
    assert looked(after(looked(outbox_replay(), seen)), seen).phase == "Planning"
    waiting = looked(after(running()), around(ended(1, AGAIN), job=child()))
    second = around(ended(1, AGAIN), driver(2, running=True), job=child(), attempt=2)
    assert decide_step(after(waiting), second, SOON) == Start(2, "Job")


def test_a_suspended_attempt_that_was_gone_already_is_no_failure() -> None:
    for seen in (around(), around(ended(143, STOPPED), job=job_that("Failed"))):
        found = looked(after(running(), suspend=True), seen)
        assert (found.phase, found.failures) == ("Suspended", None)


def test_one_that_ended_well_before_it_was_suspended_has_succeeded() -> None:
    seen = around(ended(0, DONE, "Completed"), job=child())
    assert looked(after(running(), suspend=True), seen).phase == "Succeeded"


def test_the_termination_message_of_a_suspended_attempt_is_read() -> None:
    seen = around(driver(running=True, report=report(matched=200, replayed=70)), job=child())
    suspended = looked(after(running(), suspend=True), seen)
    words = report("Stopped", matched=200, replayed=90, skipped=2, rate=0.0)
    found = looked(after(suspended, suspend=True), around(ended(143, words)), SOON)
    assert (found.phase, found.replayed, found.skipped, found.percent) == ("Suspended", 90, 2, 46)
    silent = looked(after(found, suspend=True), around(ended(137)), SOON)
    assert silent == found  # one that was killed says nothing, and what is known stays
    assert looked(after(found, suspend=True), around(), SOON) == found


def test_figures_that_are_final_are_shown_without_a_time() -> None:
    words = report("Stopped", matched=200, replayed=90, final=True)
    stopping = looked(after(running(), suspend=True), around(driver(running=True), job=child()))
    suspended = looked(after(stopping, suspend=True), around(ended(143, words)), SOON)
    assert suspended.replayed == 90
    assert FIGURES not in (suspended.message or "")
    assert looked(after(suspended, suspend=True), around(), SOON) == suspended
    failed = words.model_copy(update={"stage": "Failed", "reason": "EngineFailed"})
    given_up = looked(after(running(), backoffLimit=0), around(ended(1, failed), job=child()))
    assert (given_up.phase, given_up.replayed) == ("Failed", 90)
    assert FIGURES not in (given_up.message or "")


@pytest.mark.parametrize("stage", ["Running", "Stopped"])
def test_figures_of_a_driver_that_was_killed_while_it_was_suspended_have_a_time(stage: str) -> None:
    earlier = NOW - timedelta(seconds=3)
    words = report(stage, matched=200, replayed=60, counted_at=earlier)
    stopping = looked(after(running(), suspend=True), around(driver(running=True), job=child()))
    found = looked(after(stopping, suspend=True), around(ended(137, words)), SOON)
    assert (found.phase, found.replayed) == ("Suspended", 60)
    text = f"{FIGURES} as of 2026-03-01 11:59:57 UTC, and more may be done"
    assert text in (found.message or "")
    assert text in conditions(found)["Suspended"].message
    assert looked(after(found, suspend=True), around(), SOON) == found
    other = found.model_copy(update={"message": "something else was wrong meanwhile"})
    assert looked(after(other, suspend=True), around(), SOON) == found


def test_figures_of_a_suspended_driver_that_left_no_report_are_not_shown_as_final() -> None:
    text = f"{FIGURES} from before 2026-03-01 12:00:11 UTC, and more may be done"
    for seen in (around(), around(driver(running=True), job=child())):
        found = looked(after(running(), suspend=True), seen, SOON)
        assert (found.phase, found.replayed) == ("Suspended", 50)
        assert text in (found.message or "")
        later = SOON + timedelta(minutes=1)
        assert looked(after(found, suspend=True), around(ended(137)), later) == found


def test_figures_of_a_replay_that_was_given_up_or_deleted_have_a_time() -> None:
    killed = around(ended(137, report("Running", matched=200, replayed=60)), job=child())
    failed = looked(after(running(), backoffLimit=0), killed)
    assert (failed.phase, failed.replayed) == ("Failed", 60)
    assert f"{FIGURES} as of" in conditions(failed)["Failed"].message
    cancelled = looked(after(running(), deleted=True), killed)
    assert (cancelled.phase, cancelled.replayed) == ("Cancelled", 60)
    assert f"{FIGURES} as of" in (cancelled.message or "")


def test_suspended_between_two_attempts_it_begins_none() -> None:
    waiting = looked(after(running()), around(ended(1, AGAIN), job=child()))
    found = looked(after(waiting, suspend=True), around(ended(1, AGAIN), job=child()), SOON)
    assert (found.phase, found.failures, found.next_attempt_time) == ("Suspended", 1, None)
    assert decide_step(after(found), around(), SOON) == Start(2, "Job")


# Deletion ----------------------------------------------------------------------------------------


def test_one_that_is_deleted_midway_is_cancelled() -> None:
    found = looked(after(running(), deleted=True), around(driver(running=True), job=child()))
    assert (found.phase, found.completion_time, found.replayed) == ("Cancelled", NOW, 50)
    told = around(driver(running=True, report=report(matched=200, replayed=70)), job=child())
    assert looked(after(running(), deleted=True), told).replayed == 70
    assert conditions(found)["Complete"].reason == "Cancelled"


def test_the_requester_is_in_the_status() -> None:
    replay = outbox_replay()
    metadata = replay.metadata.model_copy(
        update={"annotations": {"outbox.dev/requested-by": "ann@example.com"}}
    )
    replay = replay.model_copy(update={"metadata": metadata})
    assert looked(replay, around()).requested_by == "ann@example.com"
    assert started().requested_by is None

"""How Argo CD, and what reads kstatus such as Flux and Helm, judge a replay."""

from datetime import timedelta

from fixtures.gitops import argocd_health, kstatus
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
from outbox_operator.replay.spec.resource import ReplayStatus
from outbox_operator.replay.status import decide_invalid_replay
from outbox_operator.shared.seen import Secret

SOON = NOW + timedelta(seconds=11)
DONE = report("Succeeded", matched=200, replayed=200)
FINAL = report("Failed", reason="SelectionInvalid", message="errorMatches: unbalanced parenthesis")


def judged(status: ReplayStatus) -> tuple[str, str]:
    """By Argo CD and by kstatus."""
    metadata = {"name": "again", "generation": status.observed_generation}
    resource = {"kind": "OutboxReplay", "metadata": metadata, "status": status.written()}
    return argocd_health(resource)[0], kstatus(resource)


def test_what_waits_or_works_is_on_its_way() -> None:
    for status in (started(), running(), looked(outbox_replay(), around(relay=None))):
        assert judged(status) == ("Progressing", "InProgress")


def test_what_is_done_is_well() -> None:
    done = looked(after(running()), around(ended(0, DONE, "Completed"), job=child()), SOON)
    assert judged(done) == ("Healthy", "Current")


def test_what_was_given_up_has_failed() -> None:
    final = looked(after(running()), around(ended(2, FINAL, "Error"), job=child()), SOON)
    assert final.phase == "Failed"
    assert judged(final) == ("Degraded", "Failed")


def test_what_only_a_person_can_help_has_failed_for_now() -> None:
    without_secret = looked(outbox_replay(), around(secrets=[Secret("orders-db", None)]))
    assert judged(without_secret) == ("Degraded", "Failed")
    invalid = decide_invalid_replay(ReplayStatus(), 1, "maxEvents: 0", NOW)
    assert judged(invalid) == ("Degraded", "Failed")


def test_what_is_suspended_is_as_it_was_asked_for() -> None:
    replay = after(running(), suspend=True)
    status = looked(replay, around(driver(running=True), job=child()))
    assert judged(status) == ("Suspended", "Current")

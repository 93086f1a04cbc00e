"""Pods whose port never answers the operator, such as behind a mesh: work goes on, and it shows."""

from datetime import timedelta
from typing import Any

import pytest

from fixtures.made_replays import after, around, child, driver, ended, looked, report, started
from fixtures.made_resources import outbox_relay
from fixtures.made_seen import NOW, deployment, pod, seen
from fixtures.made_seen import report as relay_report
from outbox_operator.relay.seen import RelaySeen
from outbox_operator.relay.spec.resource import OutboxRelay, RelayStatus
from outbox_operator.relay.status import decide_status
from outbox_operator.replay.events import decide_replay_notices
from outbox_operator.replay.spec.resource import ReplayStatus
from outbox_operator.shared.silence import SILENT_AFTER

CURES = ("NetworkPolicy", "excludeInboundPorts", "skip-inbound-ports")


def reason(status: ReplayStatus, condition: str) -> str:
    return next(c.reason for c in status.conditions if c.type == condition)


def relay_with(**status: Any) -> OutboxRelay:
    return outbox_relay().model_copy(update={"status": RelayStatus(**status)})


# A replay -----------------------------------------------------------------------------------------


def test_a_replay_begins_when_its_relay_has_a_ready_pod_though_it_was_never_read() -> None:
    """Not ready before it has registered: the kubelet knows."""
    waits = looked(after(ReplayStatus()), around(relay=relay_with(ready_replicas=0)))
    assert waits.attempts is None
    assert reason(waits, "Accepted") == "RelayUnknown"
    begins = looked(after(waits), around(relay=relay_with(ready_replicas=1)))
    assert begins.attempts == 1


def test_an_attempt_whose_status_is_never_answered_is_followed_to_its_end() -> None:
    """By what Kubernetes knows of its pod."""
    status = started()

    def at(silent: timedelta) -> ReplayStatus:
        seen = around(driver(running=True, silent=silent), job=child())
        return looked(after(status), seen)

    early = at(SILENT_AFTER / 2)
    assert early.phase == "Planning"
    assert reason(early, "Complete") == "Planning"
    status = early
    silent = at(SILENT_AFTER)
    assert silent.phase == "Running"
    assert reason(silent, "Complete") == "NoReport"
    assert all(cure in (silent.message or "") for cure in CURES)
    assert [n.reason for n in decide_replay_notices(early, silent)] == ["Running", "NoReport"]
    status = silent
    assert at(2 * SILENT_AFTER) == silent  # nothing to write, nothing to tell
    words = report("Succeeded", matched=200, replayed=200, message="200 of 200 events")
    done = looked(after(status), around(ended(0, words, "Completed"), job=child()))
    assert (done.phase, done.replayed, done.message) == ("Succeeded", 200, "200 of 200 events")


def test_figures_from_before_a_driver_fell_silent_are_not_passed_off_as_new() -> None:
    told = report(matched=200, replayed=50, rate=10.0, seconds_left=15, message="50 of 200")
    spoke = looked(after(started()), around(driver(running=True, report=told), job=child()))
    assert (spoke.message, spoke.rate) == ("50 of 200", 10.0)
    mute = around(driver(running=True, silent=SILENT_AFTER), job=child())
    silent = looked(after(spoke), mute)
    assert (silent.replayed, silent.rate, silent.eta) == (50, None, None)
    assert reason(silent, "Complete") == "NoReport"
    again = looked(after(silent), around(driver(running=True, report=told), job=child()))
    assert again.message == "50 of 200"


# A relay ------------------------------------------------------------------------------------------


def backlog_healthy(relay: OutboxRelay, around_it: RelaySeen) -> tuple[str, str, str]:
    status = decide_status(relay, around_it, 1, None, NOW)
    found = next(c for c in status.conditions if c.type == "BacklogHealthy")
    return found.status, found.reason, found.message


@pytest.mark.parametrize(
    ("relay", "reason"),
    [
        (outbox_relay(), "NoReport"),
        (relay_with(observed_at=NOW - timedelta(hours=1)), "ReportStale"),
    ],
)
def test_a_relay_that_is_ready_and_cannot_be_read_names_cause_and_cure(
    relay: OutboxRelay, reason: str
) -> None:
    status, found, message = backlog_healthy(relay, seen(pod(), deployment=deployment()))
    assert (status, found) == ("Unknown", reason)
    assert all(cure in message for cure in CURES)


def test_a_relay_that_is_not_ready_or_reports_no_backlog_yet_is_not_reported_as_cut_off() -> None:
    for found in (pod(ready=False), pod(report=relay_report(backlog=False))):
        _, reason, message = backlog_healthy(outbox_relay(), seen(found, deployment=deployment()))
        assert reason == "NoReport"
        assert not any(cure in message for cure in CURES)

"""A pod as the API server describes it, and what we make of it."""

from datetime import UTC, datetime
from typing import Any

import pytest

from outbox_operator.shared.seen import Pod


def body(**status: Any) -> dict[str, Any]:
    return {"metadata": {"name": "p"}, "status": status}


def condition(kind: str, status: str, **more: str) -> dict[str, str]:
    return {"type": kind, "status": status, **more}


def test_a_pod_that_is_just_made_is_nothing_yet() -> None:
    pod = Pod.of({"metadata": {"name": "p"}}, None)
    assert pod == Pod("p")


def test_a_ready_pod() -> None:
    pod = Pod.of(
        body(
            podIP="10.0.0.7",
            conditions=[condition("Ready", "True"), condition("Initialized", "True")],
            containerStatuses=[{"name": "relay", "ready": True, "state": {"running": {}}}],
        ),
        None,
    )
    assert (pod.ip, pod.ready, pod.migrating, pod.stopped) == ("10.0.0.7", True, False, ())


@pytest.mark.parametrize(
    ("name", "state", "migrating"),
    [
        ("migrate", {"running": {}}, True),
        ("migrate", {"waiting": {"reason": "PodInitializing"}}, False),
        ("migrate", {"terminated": {"exitCode": 0}}, False),
        ("istio-init", {"running": {}}, False),
    ],
)
def test_a_pod_migrates_while_its_container_migrate_runs(
    name: str, state: dict[str, Any], migrating: bool
) -> None:
    container = {"name": name, "ready": False, "state": state}
    assert Pod.of(body(initContainerStatuses=[container]), None).migrating is migrating


def test_last_words_of_an_init_container_are_read() -> None:
    said = '{"reason": "WrongPassword", "message": "correct the password"}'
    ended = {"terminated": {"exitCode": 1, "message": said, "reason": "Error"}}
    pod = Pod.of(
        body(
            initContainerStatuses=[
                {
                    "name": "migrate",
                    "ready": False,
                    "state": {"waiting": {"reason": "CrashLoopBackOff"}},
                    "lastState": ended,
                }
            ]
        ),
        None,
    )
    (stopped,) = pod.stopped
    assert stopped.words is not None
    assert (stopped.words.reason, stopped.exit_code) == ("WrongPassword", 1)
    assert pod.waiting[0].reason == "CrashLoopBackOff"


def test_what_is_running_well_again_has_not_stopped() -> None:
    ended = {"terminated": {"exitCode": 1}}
    container = {"name": "relay", "ready": True, "state": {"running": {}}, "lastState": ended}
    assert Pod.of(body(containerStatuses=[container]), None).stopped == ()


def test_what_has_ended_more_than_once_is_back_for_now() -> None:
    container = {
        "name": "relay",
        "ready": True,
        "restartCount": 2,
        "state": {"running": {"startedAt": "2026-03-01T12:00:00Z"}},
        "lastState": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}},
    }
    (stopped,) = Pod.of(body(containerStatuses=[container]), None).stopped
    assert stopped.back_since == datetime(2026, 3, 1, 12, tzinfo=UTC)


def test_an_init_container_that_succeeded_at_last_has_not_stopped() -> None:
    container = {
        "name": "migrate",
        "ready": True,
        "restartCount": 3,
        "state": {"terminated": {"exitCode": 0}},
        "lastState": {"terminated": {"exitCode": 1}},
    }
    assert Pod.of(body(initContainerStatuses=[container]), None).stopped == ()


def test_a_container_that_ended_well_has_not_failed() -> None:
    container = {"name": "migrate", "ready": False, "state": {"terminated": {"exitCode": 0}}}
    assert Pod.of(body(initContainerStatuses=[container]), None).stopped == ()


def test_a_pod_that_no_node_takes() -> None:
    told = condition("PodScheduled", "False", reason="Unschedulable", message="0/1 nodes")
    assert Pod.of(body(conditions=[told]), None).unschedulable == "0/1 nodes"


def test_a_pod_that_was_evicted_has_ended_and_one_that_crashes_has_not() -> None:
    assert Pod.of(body(phase="Failed", reason="Evicted"), None).ended
    assert Pod.of(body(phase="Succeeded"), None).ended
    assert not Pod.of(body(phase="Running"), None).ended


SCHEDULED = condition("PodScheduled", "True", lastTransitionTime="2026-03-01T12:00:00Z")
STARTS = condition("PodReadyToStartContainers", "True")
CREATING = {"name": "relay", "state": {"waiting": {"reason": "ContainerCreating"}}}


def test_a_pod_is_held_while_its_node_has_not_begun_with_its_containers() -> None:
    held = Pod.of(body(conditions=[SCHEDULED], containerStatuses=[CREATING]), None)
    assert held.held_since == datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("conditions", "containers"),
    [
        pytest.param([], [CREATING], id="it has no node"),
        pytest.param([SCHEDULED], [], id="its node has not taken it up"),
        pytest.param([SCHEDULED, STARTS], [CREATING], id="its image is being pulled"),
        pytest.param(
            [SCHEDULED], [{"name": "relay", "state": {"running": {}}}, CREATING], id="one runs"
        ),
    ],
)
def test_a_pod_that_waits_for_something_else_is_not_held(
    conditions: list[dict[str, str]], containers: list[dict[str, Any]]
) -> None:
    around = body(conditions=conditions, containerStatuses=containers)
    assert Pod.of(around, None).held_since is None

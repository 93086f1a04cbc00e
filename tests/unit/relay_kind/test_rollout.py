"""
A change of the spec, from the edit to the last pod or to where it is stuck: what the conditions
say, and how `kubectl wait`, kstatus and Argo CD read them.
"""

from typing import Any

import pytest

from fixtures.gitops import argocd_health, is_awaited, kstatus
from fixtures.made_resources import relay_body
from fixtures.made_seen import NOW, deployment, leaving, pod, report, seen
from outbox_core.contract.reasons import TerminationMessage
from outbox_operator.relay.seen import RelaySeen
from outbox_operator.relay.spec.resource import OutboxRelay, RelayStatus
from outbox_operator.relay.status import decide_invalid, decide_status
from outbox_operator.shared.conditions import Condition
from outbox_operator.shared.seen import Refusal, Secret, Stopped, Waiting

OLD = pod("orders-relay-old", report=report(), revision="old")
NEW = pod("orders-relay-new", report=report())
ROLLING = deployment(existing=2, updated=1)
NO_IMAGE = pod(ready=False, waiting=(Waiting("relay", "ImagePullBackOff", "not found"),))
AWAY = report(troubles={"broker": "no broker answers"}, reasons={"broker": "BrokerUnreachable"})
LATE = [{"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"}]


def relay(generation: int = 1, before: RelayStatus | None = None, **spec: Any) -> OutboxRelay:
    body = relay_body(**spec)
    body["metadata"]["generation"] = generation
    return OutboxRelay.parse(body).model_copy(update={"status": before or RelayStatus()})


def resource(judged: OutboxRelay, status: RelayStatus) -> dict[str, Any]:
    """As the API server would show it."""
    metadata = {"name": "orders", "generation": judged.metadata.generation}
    if judged.metadata.deletion_timestamp is not None:
        metadata["deletionTimestamp"] = "2026-03-01T12:00:00Z"
    return {"kind": "OutboxRelay", "metadata": metadata, "status": status.written()}


def conditions(status: RelayStatus) -> dict[str, Condition]:
    return {c.type: c for c in status.conditions}


def told(around: RelaySeen, judged: OutboxRelay, replicas: int = 1) -> RelayStatus:
    status = decide_status(judged, around, replicas, None, NOW)
    found = conditions(status)
    assert not (found["Reconciling"].status == found["Stalled"].status == "True")
    return status


DONE = told(seen(NEW, deployment=deployment()), relay())
"""Of generation 1, which has reached every pod."""


def changed(around: RelaySeen, **spec: Any) -> tuple[dict[str, Any], dict[str, Condition]]:
    """After an edit of that relay: the resource, and its conditions."""
    judged = relay(2, DONE, **spec)
    status = told(around, judged)
    return resource(judged, status), conditions(status)


def test_a_change_that_has_reached_every_pod_is_what_everybody_waits_for() -> None:
    found, judged = changed(seen(NEW, deployment=deployment()))
    assert judged["Ready"].observed_generation == 2
    assert is_awaited(found)
    assert kstatus(found) == "Current"
    assert argocd_health(found) == ("Healthy", judged["Ready"].message)


def test_while_it_is_on_its_way_events_flow_and_nobody_takes_it_for_done() -> None:
    found, judged = changed(seen(OLD, pod(ready=False), deployment=ROLLING))
    assert (judged["Ready"].status, judged["Ready"].observed_generation) == ("True", 1)

    assert found["status"]["observedGeneration"] == 2  # the operator has seen it
    assert (judged["Reconciling"].status, judged["Reconciling"].reason) == ("True", "RollingOut")
    assert not is_awaited(found)
    assert kstatus(found) == "InProgress"
    assert argocd_health(found)[0] == "Progressing"


@pytest.mark.parametrize(
    ("around", "reason"),
    [
        (seen(OLD, NO_IMAGE, deployment=ROLLING), "ImageNotPulled"),
        (
            seen(
                OLD,
                pod(ready=False, stopped=(Stopped("relay", 1, None, "Error"),)),
                deployment=ROLLING,
            ),
            "PodsCrashing",
        ),
        (seen(OLD, secrets=[Secret("db", None)], deployment=ROLLING), "SecretMissing"),
        (
            seen(
                OLD,
                deployment=deployment(),
                refusals=[Refusal("Deployment", "orders-relay", "it is invalid")],
            ),
            "PodsNotCreated",
        ),
        (
            seen(
                OLD, pod(ready=False), deployment=deployment(existing=2, updated=1, conditions=LATE)
            ),
            "RolloutStuck",
        ),
    ],
)
def test_a_change_that_is_stuck_shows_why_and_is_no_success(around: RelaySeen, reason: str) -> None:
    found, judged = changed(around)
    assert (judged["Ready"].status, judged["Ready"].observed_generation) == ("True", 1)
    for kind in ("Stalled", "Degraded"):
        assert (judged[kind].status, judged[kind].reason) == ("True", reason)
    assert judged["Stalled"].message == judged["Degraded"].message
    assert judged["Reconciling"].status == "False"
    assert not is_awaited(found)
    assert kstatus(found) == "Failed"
    assert argocd_health(found) == ("Degraded", judged["Stalled"].message)


PASSING = [
    (pod(ready=False, report=AWAY), "BrokerUnreachable"),
    (pod(ready=False, unschedulable="0/3 nodes are available"), "PodsNotScheduled"),
    (
        pod(
            ready=False,
            stopped=(
                Stopped(
                    "migrate",
                    1,
                    TerminationMessage(reason="StoreUnreachable", message="no"),
                    "Error",
                ),
            ),
        ),
        "StoreUnreachable",
    ),
]


@pytest.mark.parametrize(("new", "reason"), PASSING)
def test_what_may_end_by_itself_is_given_time_and_not_for_ever(new: Any, reason: str) -> None:
    found, judged = changed(seen(OLD, new, deployment=ROLLING))
    assert (judged["Stalled"].status, judged["Reconciling"].status) == ("False", "True")
    assert judged["Degraded"].reason == reason
    assert kstatus(found) == "InProgress"
    late = deployment(existing=2, updated=1, conditions=LATE)
    found, judged = changed(seen(OLD, new, deployment=late))
    assert (judged["Stalled"].status, judged["Stalled"].reason) == ("True", reason)


def test_an_older_child_that_is_just_being_removed_is_in_nobodys_way() -> None:
    older = Refusal("Service", "orders-relay", "waiting until an older one is gone", temporary=True)
    _, judged = changed(seen(OLD, deployment=ROLLING, refusals=[older]))
    assert (judged["Stalled"].status, judged["Reconciling"].status) == ("False", "True")


def test_what_the_old_pods_suffer_from_does_not_stall_the_change_that_corrects_it() -> None:
    bad = pod("orders-relay-bad", ready=False, revision="bad", waiting=NO_IMAGE.waiting)
    written = deployment(existing=2, updated=0, conditions=LATE, observedGeneration=0)
    _, judged = changed(seen(OLD, bad, deployment=written))
    assert judged["Degraded"].reason == "ImageNotPulled"
    assert (judged["Stalled"].status, judged["Reconciling"].status) == ("False", "True")


def test_a_first_rollout_is_not_awaited_before_all_its_pods_are_ready() -> None:
    judged = relay()
    found = resource(judged, told(seen(NEW, deployment=deployment(2, ready=1)), judged, 2))
    assert found["status"]["pods"] == "1/2"
    assert not is_awaited(found)
    assert kstatus(found) == "InProgress"
    done = resource(judged, told(seen(NEW, deployment=deployment(2)), judged, 2))
    assert is_awaited(done)


def test_what_fails_later_is_no_change_that_is_stuck() -> None:
    """An outage is no failed rollout: nobody has to do anything to the resource."""
    sick = seen(pod(ready=False, report=AWAY), deployment=deployment(ready=0))
    judged = relay(1, DONE)
    status = told(sick, judged)
    found = conditions(status)
    assert (found["Stalled"].status, found["Reconciling"].status) == ("False", "False")
    assert (found["Ready"].status, found["Ready"].observed_generation) == ("False", 1)
    assert kstatus(resource(judged, status)) == "InProgress"
    assert argocd_health(resource(judged, status))[0] == "Degraded"


def test_when_it_works_again_the_unfinished_change_is_not_taken_for_done() -> None:
    down = told(seen(NO_IMAGE, deployment=deployment(ready=0, existing=2)), relay(2, DONE))
    assert conditions(down)["Ready"].observed_generation == 2  # it is judged as it is now
    back = told(seen(OLD, NO_IMAGE, deployment=ROLLING), relay(2, down))
    assert conditions(back)["Ready"].observed_generation == 1


def test_another_pod_for_the_load_is_no_change_that_somebody_waits_for() -> None:
    judged = relay(1, DONE, autoscaling={"maxReplicas": 3})
    status = told(seen(NEW, deployment=deployment(2, ready=1)), judged, 2)
    found = conditions(status)
    assert (found["Progressing"].status, found["Reconciling"].status) == ("True", "False")
    assert is_awaited(resource(judged, status))


def test_a_pod_that_is_lost_later_is_no_change_even_if_it_cannot_be_replaced() -> None:
    failure = [{"type": "ReplicaFailure", "status": "True", "message": "exceeded quota"}]
    lost = deployment(2, existing=1, updated=1, ready=1, conditions=failure)
    found = conditions(told(seen(NEW, deployment=lost), relay(1, DONE), 2))
    assert (found["Stalled"].status, found["Reconciling"].status) == ("False", "False")
    assert found["Degraded"].reason == "PodsNotCreated"


def test_a_secret_that_was_changed_for_the_worse_is_stuck_too() -> None:
    judged = relay(1, DONE)
    status = told(seen(OLD, NO_IMAGE, deployment=ROLLING), judged)
    assert conditions(status)["Stalled"].status == "True"
    assert kstatus(resource(judged, status)) == "Failed"


def test_an_invalid_spec_is_stuck() -> None:
    judged = relay(2, DONE)
    status = decide_invalid(DONE, 2, "lease: too short", NOW)
    assert conditions(status)["Stalled"].reason == "SpecInvalid"
    assert kstatus(resource(judged, status)) == "Failed"
    assert argocd_health(resource(judged, status))[0] == "Degraded"
    assert status.rolled_out == DONE.rolled_out


@pytest.mark.parametrize(("spec", "replicas"), [({"paused": True}, 1), ({"replicas": 0}, 0)])
def test_what_publishes_nothing_because_somebody_wants_it_so_is_suspended(
    spec: dict[str, Any], replicas: int
) -> None:
    judged = relay(2, DONE, **spec)
    pods = [NEW] * replicas
    status = told(seen(*pods, deployment=deployment(replicas)), judged, replicas)
    assert argocd_health(resource(judged, status))[0] == "Suspended"


def test_no_operator_has_seen_it_yet() -> None:
    new = {"kind": "OutboxRelay", "metadata": {"name": "orders", "generation": 1}}
    assert argocd_health(new)[0] == "Progressing"
    unseen = resource(relay(3), DONE)
    assert (argocd_health(unseen)[0], kstatus(unseen)) == ("Progressing", "InProgress")


def test_one_that_is_being_deleted_is_on_its_way() -> None:
    going = leaving(relay(1, DONE), "other/one")
    found = resource(going, told(seen(NEW, deployment=deployment()), going))
    assert (argocd_health(found)[0], kstatus(found)) == ("Progressing", "Terminating")

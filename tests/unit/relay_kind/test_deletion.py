"""What is made for a relay that is being deleted: what forgetting it takes, or nothing."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest

from fixtures.made_resources import outbox_relay
from fixtures.made_seen import NOW, deployment, leaving, pod, retiring, seen
from outbox_operator.relay.decide.children import decide_children
from outbox_operator.relay.decide.deletion import ORPHANED_AFTER, RETIRE, deletion_finding
from outbox_operator.relay.seen import RelaySeen
from outbox_operator.relay.spec.resource import OutboxRelay
from outbox_operator.settings import OperatorSettings
from outbox_operator.shared.names import Manifest

REAPER = ("CronJob", "orders-reaper")
COLLECTORS = ("foregroundDeletion", "orphan")


def wanted(relay: OutboxRelay, around: RelaySeen) -> dict[str, Manifest]:
    """By kind; nothing is ever removed, the garbage collector does that."""
    found = decide_children(relay, around, OperatorSettings(), 0)
    assert found.unwanted == []
    return {child["kind"]: child for child in found.wanted}


def standing(replicas: int, *pods: Any, **given: Any) -> RelaySeen:
    reaper: Mapping[tuple[str, str], Any] = {REAPER: {"metadata": {"name": REAPER[1]}}}
    return seen(*pods, deployment=deployment(replicas), children=reaper, **given)


def drained() -> list[RelaySeen]:
    return [seen(), standing(0)]


@pytest.mark.parametrize("finalizer", [*COLLECTORS, "other/one", RETIRE])
@pytest.mark.parametrize("around", [*drained(), standing(1, pod())])
def test_nothing_is_made_for_one_that_is_kept(finalizer: str, around: RelaySeen) -> None:
    assert wanted(leaving(outbox_relay(), finalizer), around) == {}


@pytest.mark.parametrize("finalizer", [*COLLECTORS, "other/one"])
@pytest.mark.parametrize("around", [*drained(), standing(1, pod())])
def test_nothing_is_made_for_one_that_we_do_not_hold(finalizer: str, around: RelaySeen) -> None:
    going = leaving(outbox_relay(deletionPolicy="Delete"), finalizer)
    assert wanted(going, around) == {}


@pytest.mark.parametrize("finalizer", COLLECTORS)
@pytest.mark.parametrize("around", [*drained(), standing(1, pod())])
def test_nothing_is_made_while_the_garbage_collector_would_remove_it(
    finalizer: str, around: RelaySeen
) -> None:
    going = leaving(outbox_relay(deletionPolicy="Delete"), RETIRE, finalizer)
    assert wanted(going, around) == {}


def test_one_that_is_forgotten_is_drained_first() -> None:
    found = wanted(retiring(), standing(1, pod()))
    assert set(found) == {"Deployment", "CronJob"}
    assert found["Deployment"]["spec"]["replicas"] == 0
    assert found["CronJob"]["spec"]["suspend"] is True
    assert "Job" not in wanted(retiring(), standing(0, pod()))


def test_then_a_job_forgets_it_with_what_that_needs() -> None:
    found = wanted(retiring(), seen())
    assert list(found) == ["ServiceAccount", "NetworkPolicy", "ConfigMap", "Job"]
    (container,) = found["Job"]["spec"]["template"]["spec"]["containers"]
    assert container["args"][0] == "retire"
    assert {"Deployment", "CronJob", "Job"} <= set(wanted(retiring(), standing(0)))


def test_the_finalizer_of_somebody_else_does_not_keep_it_from_being_forgotten() -> None:
    going = leaving(outbox_relay(deletionPolicy="Delete"), RETIRE, "other/one")
    assert "Job" in wanted(going, seen())


def test_a_child_that_is_being_removed_is_left_alone() -> None:
    going = deployment(1)
    going["metadata"]["deletionTimestamp"] = "2026-03-01T12:00:00Z"
    assert wanted(retiring(), seen(pod(), deployment=going)) == {}


def test_one_whose_pods_were_orphaned_shows_what_to_do() -> None:
    orphaned = seen(pod())
    assert deletion_finding(retiring(), orphaned, NOW + timedelta(seconds=1)) is None
    assert deletion_finding(retiring(), seen(pod(terminating=True)), NOW + ORPHANED_AFTER) is None
    found = deletion_finding(retiring(), orphaned, NOW + ORPHANED_AFTER)
    assert found is not None
    assert found.reason == "RetirementFailed"
    assert "kubectl delete -n shop deployment," in found.message
    assert "instance=orders)" in found.message
    assert "spec.deletionPolicy to Retain" in found.message

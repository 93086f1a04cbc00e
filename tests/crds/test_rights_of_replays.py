"""Account and rights of a replay: there while a driver needs them, and with the role of today."""

from pathlib import Path
from typing import Any

import pytest

from fixtures.cluster import Kube, Namespace
from fixtures.made_resources import outbox_replay
from fixtures.operators import Resources, operating
from outbox_operator.replay.children.access import build_replay_account, build_role_binding
from outbox_operator.replay.spec.resource import OutboxReplay
from outbox_operator.settings import OperatorSettings

RBAC = "rbac.authorization.k8s.io/v1"
NAME = "again-replay"
NOON = "2026-03-01T12:00:00Z"


@pytest.fixture
def resources(server: Kube, namespace: Namespace) -> Resources:
    """With a relay that has reported once, so that replays of it may begin."""
    made = Resources(namespace)
    made.relay()
    api = namespace.kube.dynamic.resources.get(
        api_version="outbox.dev/v1alpha1", kind="OutboxRelay"
    )
    api.status.patch(
        body={"status": {"observedAt": NOON}},
        name="orders",
        namespace=namespace.name,
        content_type="application/merge-patch+json",
    )
    secret = {"metadata": {"name": "orders-db"}, "stringData": {"dsn": "postgresql://nowhere/db"}}
    namespace.kube.core.create_namespaced_secret(namespace.name, secret)
    return made


def binding(resources: Resources) -> dict[str, Any] | None:
    return resources.child("RoleBinding", NAME, RBAC)


def account(resources: Resources) -> dict[str, Any] | None:
    return resources.child("ServiceAccount", NAME, "v1")


def of_an_older_operator(resources: Resources) -> None:
    """Rights that an operator of single namespaces gave, under another name."""
    replay = OutboxReplay.parse(resources.get("again", "OutboxReplay"))
    older = OperatorSettings(namespaces=("shop",), driver_role="older-driver")
    resources.namespace.apply(build_replay_account(replay), build_role_binding(replay, older))


def suspend(resources: Resources, suspended: bool) -> None:
    resources.patch({"spec": {"suspend": suspended}}, "again", "OutboxReplay")


def test_a_role_of_before_is_replaced_and_goes_when_nobody_needs_it(
    resources: Resources, tmp_path: Path
) -> None:
    resources.replay(suspend=True, engine="Job")
    of_an_older_operator(resources)
    suspend(resources, False)
    before = binding(resources)
    assert before is not None
    with operating(resources.namespace, tmp_path / "log", DRIVER_ROLE="ours-driver"):
        resources.wait_child("Job", "again-1", "batch/v1")
        after = binding(resources)
        assert after is not None
        assert (before["roleRef"]["name"], after["roleRef"]["name"]) == (
            "older-driver",
            "ours-driver",
        )
        assert after["metadata"]["uid"] != before["metadata"]["uid"]

        suspend(resources, True)
        resources.namespace.wait(
            lambda: binding(resources) is None and account(resources) is None, 60, "both are gone"
        )
        suspend(resources, False)
        resources.wait_child("Job", "again-2", "batch/v1")
        assert binding(resources) is not None
        assert account(resources) is not None


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_what_an_older_operator_left_of_a_finished_one_is_removed(
    resources: Resources, tmp_path: Path, phase: str
) -> None:
    resources.replay()
    of_an_older_operator(resources)
    api = resources.namespace.kube.dynamic.resources.get(
        api_version="outbox.dev/v1alpha1", kind="OutboxReplay"
    )
    api.status.patch(
        body={"status": {"phase": phase, "completionTime": NOON}},
        name="again",
        namespace=resources.namespace.name,
        content_type="application/merge-patch+json",
    )
    with operating(resources.namespace, tmp_path / "log"):
        resources.namespace.wait(
            lambda: binding(resources) is None and account(resources) is None, 30, "both are gone"
        )
    assert resources.get("again", "OutboxReplay")["status"]["phase"] == phase


def test_a_paused_replay_begins_nothing_and_goes_on_when_resumed(
    resources: Resources, tmp_path: Path
) -> None:
    resources.replay(suspend=True, engine="Job")
    resources.annotate("paused", "again", "OutboxReplay")
    suspend(resources, False)
    with operating(resources.namespace, tmp_path / "log") as operator:
        resources.wait_reason("Accepted", "ReconcilePaused", "again", "OutboxReplay")
        assert operator.wrote("jobs") == []
        assert binding(resources) is None
        resources.annotate(None, "again", "OutboxReplay")
        resources.wait_child("Job", "again-1", "batch/v1")


def test_a_forbidden_replay_begins_nothing(resources: Resources, tmp_path: Path) -> None:
    resources.replay(engine="Job", sparkConf={"spark.ui.enabled": "true"})
    with operating(resources.namespace, tmp_path / "log", REPLAY_FORBID="sparkConf") as operator:
        told = resources.wait_reason("Accepted", "Forbidden", "again", "OutboxReplay")
        assert "spec.sparkConf" in told["message"]
        assert operator.wrote("jobs") == []


def test_a_forbidden_relay_gets_nothing_new_and_what_runs_goes_on(
    server: Kube, namespace: Namespace, tmp_path: Path
) -> None:
    resources = Resources(namespace)
    with operating(namespace, tmp_path / "free"):
        resources.relay(pod={"image": "mine:1"})
        before = resources.wait_child()["metadata"]["generation"]
    with operating(namespace, tmp_path / "strict", RELAY_FORBID="image,env") as operator:
        assert "spec.pod.image" in resources.wait_reason("Degraded", "Forbidden")["message"]
        resources.patch({"spec": {"pod": {"image": "mine:2"}}})
        resources.relay("bills", pod={"image": "mine:1"})
        resources.wait_reason("Ready", "ScaledToZero", "bills")
        resources.wait_reason("Degraded", "Forbidden", "bills")
        assert [w for w in operator.writes() if w.path.startswith("deployments")] == []
        assert resources.wait_child()["metadata"]["generation"] == before
        resources.patch({"spec": {"pod": {"image": None}}})
        resources.wait_reason("Degraded", "SecretMissing")


def test_an_attempt_that_is_nobodys_is_not_adopted(resources: Resources, tmp_path: Path) -> None:
    """It is another replay's in the database, whatever it is called."""
    replay = outbox_replay()
    metadata = build_replay_account(replay)["metadata"]
    kept = {key: metadata[key] for key in ("labels", "annotations")}
    kept["labels"]["app.kubernetes.io/component"] = "driver"
    container = {"name": "x", "image": "x"}
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "again-1", **kept},
        "spec": {
            "suspend": True,
            "template": {"spec": {"containers": [container], "restartPolicy": "Never"}},
        },
    }
    resources.namespace.apply(job)
    resources.replay(engine="Job")
    with operating(resources.namespace, tmp_path / "log"):
        told = resources.wait_reason("Accepted", "NameTaken", "again", "OutboxReplay")
    assert "another OutboxReplay" in told["message"]
    found = resources.wait_child("Job", "again-1", "batch/v1")
    assert "ownerReferences" not in found["metadata"]

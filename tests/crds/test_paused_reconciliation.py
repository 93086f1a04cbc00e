"""`outbox.dev/reconcile: paused`: children stay as they are, the status says so, deletion works."""

from pathlib import Path

import pytest

from fixtures.cluster import Kube, Namespace
from fixtures.operators import Resources, operating
from outbox_operator.shared.objects import API_VERSION


@pytest.fixture
def resources(server: Kube, namespace: Namespace) -> Resources:
    return Resources(namespace)


def batch_sizes(resources: Resources) -> set[str]:
    """What the files say; that of an earlier spec may still be there."""
    files = [config["data"]["relay.yaml"] for config in resources.config_maps()]
    lines = [line for file in files for line in file.splitlines()]
    return {line for line in lines if line.startswith("batchSize")}


def test_nothing_is_changed_until_it_is_resumed(resources: Resources, tmp_path: Path) -> None:
    with operating(resources.namespace, tmp_path / "log") as operator:
        resources.relay(batchSize=10)
        resources.wait_child("CronJob", "orders-reaper", "batch/v1")
        resources.annotate("paused")
        told = resources.wait_reason("Progressing", "ReconcilePaused")
        assert told["status"] == "False"
        assert "outbox.dev/reconcile-" in told["message"]

        written, looks = operator.writes(), operator.looks()
        resources.patch({"spec": {"batchSize": 20}})
        resources.namespace.kube.apps.delete_namespaced_deployment(
            "orders-relay", resources.namespace.name
        )
        resources.namespace.wait(lambda: operator.looks() >= looks + 4, 30, "it has looked")
        new = [w.path for w in operator.writes()[len(written) :]]
        assert [path for path in new if "/orders-" in path] == []
        assert resources.child() is None
        assert batch_sizes(resources) == {"batchSize: 10"}
        status = resources.get()["status"]
        assert status["observedGeneration"] < resources.get()["metadata"]["generation"]

        resources.annotate(None)
        resources.wait_child()
        resources.namespace.wait(
            lambda: "batchSize: 20" in batch_sizes(resources), 30, "the edit is carried out"
        )
        resources.namespace.wait(lambda: resources.events("ReconcileResumed") == 1, 30, "an Event")
        assert resources.events("ReconcilePaused") == 1


def test_one_that_is_paused_can_be_deleted(resources: Resources, tmp_path: Path) -> None:
    with operating(resources.namespace, tmp_path / "log"):
        resources.relay(deletionPolicy="Delete")
        resources.wait_child()
        resources.annotate("paused")
        resources.wait_reason("Progressing", "ReconcilePaused")
        resources.delete()
        resources.wait_child("Job", "orders-retire", "batch/v1")
        resources.patch({"spec": {"deletionPolicy": "Retain"}})  # there is no database here
        resources.namespace.wait(
            lambda: resources.namespace.get(API_VERSION, "OutboxRelay", "orders") is None,
            30,
            "it is gone",
        )


def test_an_unknown_value_pauses_nothing_and_is_announced(
    resources: Resources, tmp_path: Path
) -> None:
    with operating(resources.namespace, tmp_path / "log") as operator:
        resources.relay()
        resources.wait_child()
        resources.annotate("pause")
        resources.namespace.wait(lambda: resources.events("AnnotationUnknown"), 30, "an Event")
        looks = operator.looks()
        resources.patch({"spec": {"batchSize": 20}})
        resources.namespace.wait(
            lambda: "batchSize: 20" in batch_sizes(resources), 30, "the edit is carried out"
        )
        resources.namespace.wait(lambda: operator.looks() >= looks + 3, 30, "it has looked")
        assert resources.events("AnnotationUnknown") == 1

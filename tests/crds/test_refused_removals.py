"""
What the operator may not remove, look at or keep: a condition says so, and the rest goes on.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes.client.exceptions import ApiException

from fixtures.cluster import Kube, Namespace
from fixtures.operators import Resources, operating

ADMISSION = "admissionregistration.k8s.io/v1"
SAID = "no ConfigMap may be deleted here"


@pytest.fixture
def resources(server: Kube, namespace: Namespace) -> Resources:
    return Resources(namespace)


@pytest.fixture
def guarded(resources: Resources) -> Iterator[Resources]:
    """Somebody's policy lets nobody delete ConfigMaps in it."""
    kube, name = resources.namespace.kube, resources.namespace.name
    rule = {
        **{"apiGroups": [""], "apiVersions": ["v1"]},
        **{"operations": ["DELETE"], "resources": ["configmaps"]},
    }
    here = {"matchLabels": {"kubernetes.io/metadata.name": name}}
    specs: dict[str, dict[str, Any]] = {
        "ValidatingAdmissionPolicy": {
            "matchConstraints": {"resourceRules": [rule]},
            "validations": [{"expression": "false", "message": SAID}],
        },
        "ValidatingAdmissionPolicyBinding": {
            "policyName": name,
            "validationActions": ["Deny"],
            "matchResources": {"namespaceSelector": here},
        },
    }
    apis = [kube.dynamic.resources.get(api_version=ADMISSION, kind=kind) for kind in specs]
    for api, (kind, spec) in zip(apis, specs.items(), strict=True):
        meta = {"name": name}
        api.create(body={"apiVersion": ADMISSION, "kind": kind, "metadata": meta, "spec": spec})
    kube.core.create_namespaced_config_map(name, {"metadata": {"name": "probe"}})

    def works() -> bool:
        try:
            kube.core.delete_namespaced_config_map("probe", name, dry_run="All")
        except ApiException as error:
            return SAID in str(error.body)
        return False

    resources.namespace.wait(works, 30, "the policy works")
    yield resources
    for api in apis:
        api.delete(name=name)


def test_a_removal_that_is_refused_is_a_condition(guarded: Resources, tmp_path: Path) -> None:
    secret = {"metadata": {"name": "orders-db"}, "stringData": {"dsn": "unused"}}
    guarded.namespace.apply({"apiVersion": "v1", "kind": "Secret", **secret})
    with operating(guarded.namespace, tmp_path / "log"):
        guarded.relay(batchSize=10)
        guarded.wait_reason("Progressing", "AsExpected")
        guarded.patch({"spec": {"batchSize": 20}})
        told = guarded.wait_reason("Degraded", "PodsNotCreated")
    assert SAID in told["message"]
    live = guarded.get()
    assert live["status"]["observedGeneration"] == live["metadata"]["generation"]


def test_a_relay_that_is_forbidden_since_can_be_deleted(
    resources: Resources, tmp_path: Path
) -> None:
    """The Job that makes the database forget it is of the operator's own image."""
    with operating(resources.namespace, tmp_path / "log"):
        resources.relay(deletionPolicy="Delete", pod={"image": "mine:1"})
        resources.wait_child("CronJob", "orders-reaper", "batch/v1")
    ours = {"RELAY_FORBID": "image", "RELAY_IMAGE": "ours:1"}
    with operating(resources.namespace, tmp_path / "log", **ours):
        resources.wait_reason("Degraded", "Forbidden")
        resources.delete()
        job = resources.wait_child("Job", "orders-retire", "batch/v1")
        resources.patch({"spec": {"deletionPolicy": "Retain"}})  # there is no database here
    assert job["spec"]["template"]["spec"]["containers"][0]["image"] == "ours:1"

"""
An edit that cannot work: the old pods go on and can be replaced, nothing takes it for done, and
when it is corrected nothing is left of it. Edits come by Helm, which waits by kstatus as Flux does.
"""

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from dev.cluster import binaries
from dev.cluster.clusters import exports
from fixtures.gitops import argocd_health, kstatus
from fixtures.shop import Shop

NOT_DONE = "8s"
"""For which one waits for what cannot be done."""
NOWHERE = {"image": "outbox-relay:of-nowhere", "imagePullPolicy": "Never"}
THEIRS = {"serviceAccountName": "default"}
"""Every namespace has it; so the relay's own account is no longer needed by new pods."""


class Git:
    """The relay as somebody keeps it in a chart."""

    def __init__(self, shop: Shop, chart: Path) -> None:
        self._shop = shop
        self._chart = chart
        (chart / "templates").mkdir()
        written = {"apiVersion": "v2", "name": "orders", "version": "0.1.0"}
        (chart / "Chart.yaml").write_text(yaml.safe_dump(written))

    def push(self, within: str = "2m", **spec: Any) -> bool:
        """Whether Helm has seen it done."""
        path = self._chart / "templates" / "relay.yaml"
        path.write_text(yaml.safe_dump(self._shop.relay(**spec)))
        install = ("helm", "upgrade", "--install", "orders", str(self._chart))
        return self.run(*install, "--wait", "--timeout", within)

    def awaited(self) -> bool:
        ready = ("wait", "--for=condition=Ready", "obr/orders")
        return self.run("kubectl", *ready, "--timeout=5s")

    def run(self, program: str, *arguments: str) -> bool:
        done = subprocess.run(
            [binaries.client() / program, *arguments, "--namespace", self._shop.namespace.name],
            env={**os.environ, **exports(self._shop.namespace.kube.cluster, os.environ)},
            capture_output=True,
            text=True,
        )
        print(program, done.stdout, done.stderr)  # pytest shows it where the test failed
        return done.returncode == 0


@pytest.fixture
def git(shop: Shop, tmp_path: Path) -> Git:
    return Git(shop, tmp_path)


def judged(shop: Shop) -> tuple[str, str]:
    """By Argo CD and by kstatus."""
    resource = shop.resource()
    return argocd_health(resource)[0], kstatus(resource)


def working(shop: Shop) -> set[str]:
    """Pods that are ready."""
    found = shop.namespace.pods("app.kubernetes.io/component=relay")
    return {
        pod.metadata.name
        for pod in found
        for condition in pod.status.conditions or ()
        if (condition.type, condition.status) == ("Ready", "True")
        and pod.metadata.deletion_timestamp is None
    }


def test_a_bad_edit_is_neither_an_outage_nor_a_success(shop: Shop, git: Git) -> None:
    assert git.push(replicas=2)
    assert shop.status()["pods"] == "2/2"  # it has waited for all of them
    assert judged(shop) == ("Healthy", "Current")
    assert git.awaited()
    good, pods = shop.config_map(), working(shop)
    assert (shop.children("ConfigMap"), len(pods)) == ({good}, 2)

    assert not git.push(within=NOT_DONE, replicas=2, pod={**NOWHERE, **THEIRS})
    told = shop.wait_condition("Stalled", "True", "ImageNotPulled")
    assert "spec.pod.image" in told["message"]
    assert shop.wait_condition("Degraded", "True", "ImageNotPulled")["message"] == told["message"]
    ready, generation = shop.condition("Ready"), shop.resource()["metadata"]["generation"]
    assert (ready["status"], shop.status()["observedGeneration"]) == ("True", generation)
    assert ready["observedGeneration"] < generation
    assert not git.awaited()
    assert judged(shop) == ("Degraded", "Failed")
    row = shop.row()
    assert (row["Ready"], row["Degraded"], row["Replicas"]) == ("True", "True", "2/2")

    worse = {**shop.to(shop.topic)["kafka"], "config": {"no.such.setting": "1"}}
    assert not git.push(within=NOT_DONE, replicas=2, publisher={"kafka": worse}, pod=THEIRS)
    told = shop.wait_condition("Stalled", "True", "SettingsInvalid")
    assert "no.such.setting" in told["message"]
    assert shop.config_map() != good
    assert working(shop) == pods

    # What an old pod read, and who it was, is there for the one that takes its place.
    victim = min(pods)
    shop.namespace.kube.core.delete_namespaced_pod(
        victim, shop.namespace.name, grace_period_seconds=0
    )
    shop.namespace.wait(
        lambda: len(working(shop)) == 2 and victim not in working(shop), 60, "another old pod"
    )
    shop.finish(shop.emit(500), 60)
    assert shop.arrived(500)["missing"] == 0
    assert good in shop.children("ConfigMap")
    assert shop.children("ServiceAccount") == {"orders-relay"}
    assert judged(shop) == ("Degraded", "Failed")

    assert git.push(replicas=2, batchSize=77, pod=THEIRS)
    assert git.awaited()
    assert judged(shop) == ("Healthy", "Current")
    shop.wait_condition("Stalled", "False")
    shop.wait_condition("Degraded", "False")
    shop.namespace.wait(
        lambda: shop.children("ConfigMap") == {shop.config_map()}, 60, "one ConfigMap alone"
    )
    shop.namespace.wait(lambda: not shop.children("ServiceAccount"), 30, "no account of its own")

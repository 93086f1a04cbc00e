"""A life of the chart on a real cluster: installed, tested, upgraded, removed; relays stay."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from fixtures.chart import CHART, RELEASE, Values, helm, merged, nested
from fixtures.cluster import Kube, Namespace
from fixtures.made_resources import relay_body
from outbox_operator.shared.objects import API_VERSION

WITHIN = "120s"


class Installed:
    """A release in the test's own namespace."""

    def __init__(self, namespace: Namespace, values: Values) -> None:
        self.namespace = namespace
        self._values = values
        self._environ = {"KUBECONFIG": str(namespace.kube.cluster.kubeconfig)}

    def helm(self, *arguments: str, values: Values | None = None) -> str:
        done = helm(
            *arguments, "--namespace", self.namespace.name, values=values, environ=self._environ
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def install(self) -> None:
        # The other tests have applied the CRDs by themselves.
        owning = ("--take-ownership", "--force-conflicts")
        how = ("--wait", "--timeout", WITHIN, *owning)
        self.helm("install", RELEASE, str(CHART), *how, values=self._values)

    def upgrade(self, values: Values) -> None:
        how = ("--wait", "--timeout", WITHIN)
        self.helm("upgrade", RELEASE, str(CHART), *how, values=merged(self._values, values))

    def test(self) -> str:
        return self.helm("test", RELEASE, "--logs", "--timeout", WITHIN)

    def uninstall(self) -> None:
        self.helm("uninstall", RELEASE, "--wait", "--timeout", WITHIN)

    def log(self) -> list[dict[str, Any]]:
        (pod,) = self.namespace.pods("app.kubernetes.io/component=operator")
        return [json.loads(line) for line in self.namespace.logs(pod.metadata.name).splitlines()]


@pytest.fixture
def life(
    server: Kube, namespace: Namespace, operator_image: str, request: pytest.FixtureRequest
) -> Iterator[Installed]:
    registry, _, rest = operator_image.rpartition("/")
    repository, _, tag = rest.partition(":")
    images = {"registry": registry, "operator": {"repository": repository, "tag": tag}}
    watched = [namespace.name] if request.param == "namespaced" else []
    installed = Installed(namespace, {"images": images, "watch": {"namespaces": watched}})
    yield installed
    helm(
        *("uninstall", RELEASE, "--namespace", namespace.name, "--ignore-not-found"),
        environ={"KUBECONFIG": str(server.cluster.kubeconfig)},
    )


def child(namespace: Namespace) -> dict[str, Any] | None:
    return namespace.get("apps/v1", "Deployment", "orders-relay")


def identity(found: dict[str, Any] | None) -> tuple[str, int]:
    assert found
    return found["metadata"]["uid"], found["metadata"]["generation"]


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("life", ["cluster-wide", "namespaced"], indirect=True)
def test_relays_live_longer_than_releases(life: Installed, namespace: Namespace) -> None:
    life.install()
    assert "alive" in life.test()

    # It looks after a relay: children, status and events, with the rights that the chart gives.
    namespace.apply({**relay_body(), "metadata": {"name": "orders"}})
    namespace.wait(lambda: child(namespace), 30, "the relay's Deployment")
    namespace.wait(lambda: conditions(namespace).get("Degraded") == "True", 30, "a condition")
    before = identity(child(namespace))
    refused = [line for line in life.log() if "forbidden" in json.dumps(line)]
    assert refused == []

    # An upgrade changes the operator and nothing else.
    life.upgrade(nested("log.level", "debug"))
    assert identity(child(namespace)) == before
    assert {line["level"] for line in life.log()} >= {"debug"}

    # An uninstall leaves the relay and what it is made of.
    life.uninstall()
    gone = "app.kubernetes.io/component=operator"  # Helm waits for the Deployment, not for its pod
    namespace.wait(lambda: not namespace.pods(gone), 60, "the operator's pod gone")
    assert identity(child(namespace)) == before
    assert namespace.get(API_VERSION, "OutboxRelay", "orders")

    # Installed anew it goes on, and cleans up what is no longer wanted.
    life.install()
    assert identity(child(namespace)) == before
    delete(namespace)
    namespace.wait(lambda: child(namespace) is None, 60, "its children gone")


def conditions(namespace: Namespace) -> dict[str, str]:
    found = namespace.get(API_VERSION, "OutboxRelay", "orders") or {}
    listed = found.get("status", {}).get("conditions", [])
    return {condition["type"]: condition["status"] for condition in listed}


def delete(namespace: Namespace) -> None:
    api = namespace.kube.dynamic.resources.get(api_version=API_VERSION, kind="OutboxRelay")
    api.delete(name="orders", namespace=namespace.name)

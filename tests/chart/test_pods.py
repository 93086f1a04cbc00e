"""The two pods of the chart: how little they may do, where they run, who reaches them."""

from typing import Any

import pytest

from dev.images.recipes import version
from fixtures.chart import Object, nested, only, render
from outbox_operator.settings import OperatorSettings

STRICT = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}


def pods(values: dict[str, Any] | None = None) -> dict[str, Object]:
    objects = render(values)
    return {
        "operator": only(objects, "Deployment")["spec"]["template"]["spec"],
        "test": only(objects, "Pod")["spec"],
    }


def container(pod: Object) -> Object:
    (found,) = pod["containers"]
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("name", ["operator", "test"])
def test_a_pod_may_do_as_little_as_can_be(name: str) -> None:
    pod = pods()[name]
    security = pod["securityContext"]
    assert security["runAsNonRoot"] is True
    assert security["runAsUser"] == 65532
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container(pod)["securityContext"] == STRICT
    assert container(pod)["resources"]["limits"]["memory"]
    assert pod["automountServiceAccountToken"] is (name == "operator")


@pytest.mark.parametrize("name", ["operator", "test"])
def test_ids_can_be_left_to_the_cluster(name: str) -> None:
    security = pods({"fixedIds": False})[name]["securityContext"]
    assert security == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}


@pytest.mark.parametrize("name", ["operator", "test"])
def test_security_contexts_of_ones_own_stand_instead_of_the_charts(name: str) -> None:
    own = {"securityContext": {"runAsUser": 7}, "containerSecurityContext": {"privileged": False}}
    pod = pods({"pod": own})[name]
    assert pod["securityContext"] == own["securityContext"]
    assert container(pod)["securityContext"] == own["containerSecurityContext"]


def test_a_service_does_not_become_a_setting() -> None:
    """Kubernetes would set OUTBOX_OPERATOR_PORT and others, after a Service of that name."""
    assert "port" in OperatorSettings.model_fields
    assert pods()["operator"]["enableServiceLinks"] is False


def test_there_is_one_and_the_old_one_ends_first() -> None:
    spec = only(render(), "Deployment")["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})


def test_the_probes_ask_the_port_that_the_operator_serves() -> None:
    operator = container(pods()["operator"])
    (port,) = operator["ports"]
    assert port["containerPort"] == OperatorSettings().port
    paths = {"startupProbe": "/healthz", "livenessProbe": "/healthz", "readinessProbe": "/readyz"}
    for probe, path in paths.items():
        assert operator[probe]["httpGet"] == {"path": path, "port": port["name"]}


@pytest.mark.parametrize("name", ["operator", "test"])
def test_a_pod_is_placed_as_asked(name: str) -> None:
    placed = {
        "nodeSelector": {"disk": "ssd"},
        "tolerations": [{"key": "infra", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "priorityClassName": "high",
        "imagePullSecrets": [{"name": "registry"}],
    }
    assert not placed.keys() & pods()[name].keys()
    assert pods(nested("pod", placed))[name].items() >= placed.items()


@pytest.mark.parametrize("name", ["operator", "test"])
@pytest.mark.parametrize(
    ("images", "reference"),
    [
        ({}, f"outbox-operator:{version()}"),
        ({"registry": "localhost:5000/team"}, f"localhost:5000/team/outbox-operator:{version()}"),
        ({"operator": {"tag": "edge", "repository": "my/op"}}, "my/op:edge"),
        (
            {"operator": {"tag": "edge", "digest": f"sha256:{'a' * 64}"}},
            f"outbox-operator@sha256:{'a' * 64}",
        ),
    ],
)
def test_the_image_is_the_one_that_is_named(
    name: str, images: dict[str, Any], reference: str
) -> None:
    assert container(pods({"images": images})[name])["image"] == reference


@pytest.mark.parametrize("name", ["operator", "test"])
def test_the_pull_policy_is_kubernetes_own_unless_given(name: str) -> None:
    assert "imagePullPolicy" not in container(pods()[name])
    given = pods(nested("images.pullPolicy", "Never"))[name]
    assert container(given)["imagePullPolicy"] == "Never"


def test_resources_are_those_of_the_values() -> None:
    values = nested("pod.resources", {"requests": {"cpu": 1}, "limits": {"memory": None}})
    resources = container(pods(values)["operator"])["resources"]
    assert resources["requests"] == {"cpu": 1, "memory": "128Mi"}
    assert not resources.get("limits")


def test_in_comes_who_asks_the_port_and_out_is_open() -> None:
    spec = only(render(), "NetworkPolicy")["spec"]
    assert spec["policyTypes"] == ["Ingress"]
    assert spec["ingress"] == [{"ports": [{"port": "http", "protocol": "TCP"}]}]


def test_who_may_come_in_can_be_said_and_the_test_still_may() -> None:
    prometheus = {"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}
    objects = render(nested("networkPolicy.from", [prometheus]))
    (rule,) = only(objects, "NetworkPolicy")["spec"]["ingress"]
    assert rule["from"][0] == prometheus
    allowed = rule["from"][1]["podSelector"]["matchLabels"]
    assert allowed.items() <= only(objects, "Pod")["metadata"]["labels"].items()


def test_where_it_may_go_can_be_said_and_names_are_still_found() -> None:
    api = {"to": [{"ipBlock": {"cidr": "10.0.0.1/32"}}]}
    spec = only(render(nested("networkPolicy.egress", [api])), "NetworkPolicy")["spec"]
    assert spec["policyTypes"] == ["Ingress", "Egress"]
    assert {port["port"] for port in spec["egress"][0]["ports"]} == {53}
    assert spec["egress"][1] == api


def test_a_budget_never_holds_a_pod_that_does_not_work() -> None:
    spec = only(render(nested("podDisruptionBudget.enabled", True)), "PodDisruptionBudget")["spec"]
    assert spec["maxUnavailable"] == 0
    assert spec["unhealthyPodEvictionPolicy"] == "AlwaysAllow"

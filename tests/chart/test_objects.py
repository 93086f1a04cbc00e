"""What the chart makes of its values: objects, switches, names, labels, rights."""

import json
from typing import Any

import pytest
import yaml

from fixtures.chart import (
    NAMESPACE,
    RELEASE,
    ROOT,
    SWITCHES_ON,
    Object,
    environment,
    merged,
    names,
    nested,
    of_kind,
    only,
    refusal,
    render,
)
from outbox_operator.settings import OperatorSettings, load, variables

BY_DEFAULT = {
    ("CustomResourceDefinition", "outboxrelays.outbox.dev"),
    ("CustomResourceDefinition", "outboxreplays.outbox.dev"),
    ("ServiceAccount", RELEASE),
    ("ClusterRole", RELEASE),
    ("ClusterRoleBinding", RELEASE),
    ("ClusterRole", f"{RELEASE}-driver"),
    ("ClusterRole", f"{RELEASE}-view"),
    ("ClusterRole", f"{RELEASE}-edit"),
    ("Deployment", RELEASE),
    ("Service", RELEASE),
    ("NetworkPolicy", RELEASE),
    ("Pod", f"{RELEASE}-test"),
}
SWITCHES = {
    "crds.enabled": {(k, n) for k, n in BY_DEFAULT if k == "CustomResourceDefinition"},
    "serviceAccount.create": {("ServiceAccount", RELEASE)},
    "rbac.create": {(k, n) for k, n in BY_DEFAULT if k.startswith("ClusterRole")},
    "rbac.aggregate": {("ClusterRole", f"{RELEASE}-view"), ("ClusterRole", f"{RELEASE}-edit")},
    "metrics.service.enabled": {("Service", RELEASE), ("Pod", f"{RELEASE}-test")},
    "networkPolicy.enabled": {("NetworkPolicy", RELEASE)},
    "podDisruptionBudget.enabled": {("PodDisruptionBudget", RELEASE)},
    "metrics.serviceMonitor.enabled": {("ServiceMonitor", RELEASE)},
    "metrics.podMonitor.enabled": {("PodMonitor", f"{RELEASE}-relays")},
    "metrics.rules.enabled": {("PrometheusRule", RELEASE)},
    "argocd.healthChecks.enabled": {("ConfigMap", f"{RELEASE}-argocd")},
}
"""What comes and goes with each."""
VERSIONS = ("1.31.0", "1.35.0")
EVERYTHING = merged(
    SWITCHES_ON,
    {"labels": {"team": "shop"}, "annotations": {"example.com/by": "us"}},
    nested("pod.labels", {"sidecar": "no"}),
    nested("pod.annotations", {"example.com/of": "pod"}),
)


@pytest.mark.parametrize("kubernetes", VERSIONS)
def test_the_default_is_all_that_is_needed_and_nothing_else(kubernetes: str) -> None:
    assert names(render(kubernetes=kubernetes)) == BY_DEFAULT


@pytest.mark.parametrize("kubernetes", VERSIONS)
@pytest.mark.parametrize("switch", SWITCHES)
def test_a_switch_switches_its_own_objects(switch: str, kubernetes: str) -> None:
    on = names(render(nested(switch, True), kubernetes=kubernetes))
    off = names(render(nested(switch, False), kubernetes=kubernetes))
    assert on - off == SWITCHES[switch]
    assert off <= on
    assert BY_DEFAULT in (on, off)


def test_an_older_kubernetes_is_refused() -> None:
    assert "chart requires kubeVersion: >=1.31.0-0" in refusal({}, kubernetes="1.30.9")


def test_a_monitor_without_its_service_is_refused() -> None:
    values = merged(
        nested("metrics.service.enabled", False), nested("metrics.serviceMonitor.enabled", True)
    )
    assert "needs metrics.service.enabled" in refusal(values)


# The CRDs ----------------------------------------------------------------------------------------


def without_metadata(crd: Object) -> Object:
    return {name: value for name, value in crd.items() if name != "metadata"}


def test_the_crds_are_those_of_the_one_source() -> None:
    sources = [yaml.safe_load(path.read_text()) for path in sorted(ROOT.glob("crds/*.yaml"))]
    rendered = of_kind(render(), "CustomResourceDefinition")
    assert [c["metadata"]["name"] for c in rendered] == [c["metadata"]["name"] for c in sources]
    assert [without_metadata(c) for c in rendered] == [without_metadata(c) for c in sources]


@pytest.mark.parametrize(("keep", "policy"), [(True, "keep"), (False, None)])
def test_the_crds_outlive_the_release_unless_told_otherwise(keep: bool, policy: str | None) -> None:
    for crd in of_kind(render(nested("crds.keep", keep)), "CustomResourceDefinition"):
        annotations = crd["metadata"].get("annotations", {})
        assert annotations.get("helm.sh/resource-policy") == policy


# Names and labels --------------------------------------------------------------------------------


def selectors(objects: list[Object]) -> list[dict[str, str]]:
    return [
        only(objects, "Deployment")["spec"]["selector"]["matchLabels"],
        only(objects, "Service")["spec"]["selector"],
        only(objects, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
        only(objects, "NetworkPolicy")["spec"]["podSelector"]["matchLabels"],
    ]


def test_selectors_find_the_operators_pod_and_not_that_of_the_test() -> None:
    objects = render(EVERYTHING)
    pod = only(objects, "Deployment")["spec"]["template"]["metadata"]["labels"]
    test = only(objects, "Pod")["metadata"]["labels"]
    for selector in selectors(objects):
        assert selector.items() <= pod.items()
        assert not selector.items() <= test.items()
    service = only(objects, "Service")["metadata"]["labels"]
    wanted = only(objects, "ServiceMonitor")["spec"]["selector"]["matchLabels"]
    assert wanted.items() <= service.items()


def test_every_object_has_the_usual_labels_and_those_that_were_added() -> None:
    for found in render(EVERYTHING):
        labels = found["metadata"]["labels"]
        assert labels["app.kubernetes.io/name"] == "outbox-operator"
        assert labels["app.kubernetes.io/instance"] == RELEASE
        assert labels["app.kubernetes.io/managed-by"] == "Helm"
        assert labels["helm.sh/chart"].startswith("outbox-operator-")
        assert labels["team"] == "shop"
        assert found["metadata"]["annotations"]["example.com/by"] == "us"


def test_the_pod_has_its_own_labels_and_annotations_besides() -> None:
    metadata = only(render(EVERYTHING), "Deployment")["spec"]["template"]["metadata"]
    assert metadata["labels"].items() >= {"team": "shop", "sidecar": "no"}.items()
    assert metadata["annotations"] == {"example.com/by": "us", "example.com/of": "pod"}


def test_added_labels_do_not_replace_those_that_selectors_need() -> None:
    taken = {"app.kubernetes.io/component": "mine"}
    objects = render(merged(SWITCHES_ON, {"labels": taken}, nested("pod.labels", taken)))
    pod = only(objects, "Deployment")["spec"]["template"]["metadata"]["labels"]
    assert all(selector.items() <= pod.items() for selector in selectors(objects))


@pytest.mark.parametrize(
    ("release", "values", "name"),
    [
        ("outbox-operator", {}, "outbox-operator"),
        ("shop", {}, "shop-outbox-operator"),
        ("shop", {"nameOverride": "events"}, "shop-events"),
        ("shop", {"fullnameOverride": "events"}, "events"),
        ("r" * 53, {}, "r" * 53),
    ],
)
def test_objects_are_named_after_release_and_chart(
    release: str, values: dict[str, Any], name: str
) -> None:
    objects = render(merged(SWITCHES_ON, values), release=release)
    assert only(objects, "Deployment")["metadata"]["name"] == name
    assert all(len(found["metadata"]["name"]) <= 63 for found in objects)


def test_everything_but_cluster_kinds_is_in_the_releases_namespace() -> None:
    for found in render(SWITCHES_ON):
        anywhere = found["kind"].startswith("Cluster") or "CustomResource" in found["kind"]
        assert found["metadata"].get("namespace") == (None if anywhere else NAMESPACE)


# One namespace, or all ---------------------------------------------------------------------------


def test_with_namespaces_there_are_no_cluster_rights() -> None:
    objects = render(merged(SWITCHES_ON, nested("watch.namespaces", ["shop", "billing"])))
    assert not [found for found in objects if found["kind"].startswith("Cluster")]
    where = {
        kind: [
            (found["metadata"]["namespace"], found["metadata"]["name"])
            for found in of_kind(objects, kind)
        ]
        for kind in ("Role", "RoleBinding")
    }
    namespaces = ("shop", "billing")
    drivers = f"{RELEASE}-driver"
    assert where["Role"] == [(where, name) for where in namespaces for name in (RELEASE, drivers)]
    assert where["RoleBinding"] == [(where, RELEASE) for where in namespaces]


def rules(objects: list[Object], kind: str, name: str) -> Any:
    (found,) = [f for f in of_kind(objects, kind) if f["metadata"]["name"] == name]
    return found["rules"]


@pytest.mark.parametrize("name", [RELEASE, f"{RELEASE}-driver"])
def test_the_rights_are_the_same_in_a_role_and_in_a_cluster_role(name: str) -> None:
    of_role = rules(render(nested("watch.namespaces", ["shop"])), "Role", name)
    of_cluster = rules(render(), "ClusterRole", name)
    # But for the kind of the role that drivers get.
    as_text = json.dumps(of_cluster).replace('"clusterroles"', '"roles"')
    assert json.loads(as_text) == of_role


@pytest.mark.parametrize(
    ("namespaces", "kind", "resource"),
    [([], "ClusterRole", "clusterroles"), (["shop"], "Role", "roles")],
)
def test_the_operator_may_bind_the_role_of_drivers_and_no_other(
    namespaces: list[str], kind: str, resource: str
) -> None:
    objects = render(merged(nested("watch.namespaces", namespaces), {"fullnameOverride": "ours"}))
    (bind,) = [rule for rule in rules(objects, kind, "ours") if "bind" in rule["verbs"]]
    assert bind["resources"] == [resource]
    assert bind["resourceNames"] == ["ours-driver"]
    assert bind["verbs"] == ["bind"]
    assert rules(objects, kind, "ours-driver")
    told = environment(only(objects, "Deployment"))
    assert told["OUTBOX_OPERATOR_DRIVER_ROLE"] == "ours-driver"


def test_no_right_is_a_wildcard() -> None:
    for found in of_kind(render(), "ClusterRole"):
        for rule in found["rules"]:
            assert "*" not in [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]


@pytest.mark.parametrize("namespaces", [[], ["shop"]])
@pytest.mark.parametrize(
    ("values", "account"),
    [
        ({}, RELEASE),
        (nested("serviceAccount.name", "mine"), "mine"),
        (nested("serviceAccount", {"create": False, "name": "mine"}), "mine"),
        (nested("serviceAccount.create", False), "default"),
    ],
)
def test_the_rights_are_given_to_who_runs(
    values: dict[str, Any], account: str, namespaces: list[str]
) -> None:
    objects = render(merged(values, nested("watch.namespaces", namespaces)))
    pod = only(objects, "Deployment")["spec"]["template"]["spec"]
    binding = only(objects, "RoleBinding" if namespaces else "ClusterRoleBinding")
    subject = {"kind": "ServiceAccount", "name": account, "namespace": NAMESPACE}
    assert (pod["serviceAccountName"], binding["subjects"]) == (account, [subject])
    assert binding["roleRef"]["name"] == RELEASE


def test_monitoring_covers_what_is_watched() -> None:
    everywhere = only(render(SWITCHES_ON), "PodMonitor")
    assert everywhere["spec"]["namespaceSelector"] == {"any": True}
    some = only(render(merged(SWITCHES_ON, nested("watch.namespaces", ["shop"]))), "PodMonitor")
    assert some["spec"]["namespaceSelector"] == {"matchNames": ["shop"]}


# What the operator is told -----------------------------------------------------------------------


def told(values: dict[str, Any]) -> OperatorSettings:
    """As the operator reads it: a variable that it does not know is refused."""
    return load(environment(only(render(values), "Deployment")))


def test_by_default_the_operator_is_told_its_own_defaults() -> None:
    assert told({}) == OperatorSettings(identity=f"{NAMESPACE}/{RELEASE}")


def test_every_setting_can_be_told() -> None:
    assert set(environment(only(render(), "Deployment"))) == set(variables())


def test_the_operator_is_told_what_the_values_say() -> None:
    values = {
        "images": {
            "registry": "registry.example.com/team",
            "pullPolicy": "Always",
            "relay": {"repository": "relay", "tag": "1"},
            "spark": {"digest": f"sha256:{'0' * 64}"},
        },
        "watch": {"namespaces": ["shop", "billing"]},
        "fixedIds": False,
        "operator": {"interval": "5s", "idleInterval": "1m", "secretInterval": "2m", "workers": 3}
        | {"rolloutDelay": "30s"},
        "policy": {"relays": {"forbid": ["image", "env"]}, "replays": {"forbid": ["sparkConf"]}},
        "log": {"format": "text", "level": "debug"},
    }
    given = {
        "OUTBOX_OPERATOR_IDENTITY": f"{NAMESPACE}/{RELEASE}",
        "OUTBOX_OPERATOR_ROLLOUT_DELAY": "30s",
        "OUTBOX_OPERATOR_RELAY_FORBID": "image,env",
        "OUTBOX_OPERATOR_REPLAY_FORBID": "sparkConf",
        "OUTBOX_OPERATOR_RELAY_IMAGE": "registry.example.com/team/relay:1",
        "OUTBOX_OPERATOR_SPARK_IMAGE": f"registry.example.com/team/outbox-spark@sha256:{'0' * 64}",
        "OUTBOX_OPERATOR_IMAGE_PULL_POLICY": "Always",
        "OUTBOX_OPERATOR_FIXED_IDS": "false",
        "OUTBOX_OPERATOR_DRIVER_ROLE": f"{RELEASE}-driver",
        "OUTBOX_OPERATOR_NAMESPACES": "shop,billing",
        "OUTBOX_OPERATOR_INTERVAL": "5s",
        "OUTBOX_OPERATOR_IDLE_INTERVAL": "1m",
        "OUTBOX_OPERATOR_SECRET_INTERVAL": "2m",
        "OUTBOX_OPERATOR_WORKERS": "3",
        "OUTBOX_OPERATOR_PORT": "8080",
        "OUTBOX_OPERATOR_LOG_FORMAT": "text",
        "OUTBOX_OPERATOR_LOG_LEVEL": "debug",
    }
    assert environment(only(render(values), "Deployment")) == given
    assert told(values).namespaces == ("shop", "billing")

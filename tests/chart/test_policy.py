"""
policy.*.forbid: the operator and the API server forbid the same. The second is asked with the real
policy, in a namespace of its own.
"""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from kubernetes.client.exceptions import ApiException

from fixtures.chart import CHART, environment, merged, names, nested, of_kind, only, render
from fixtures.cluster import Kube, Namespace
from fixtures.made_resources import relay_body, replay_body
from outbox_operator.kinds import CUSTOM_KINDS
from outbox_operator.settings import PREFIX, load
from outbox_operator.shared.forbidden import FIELDS, forbidden_fields
from outbox_operator.shared.objects import API_VERSION

RELAYS = ["image", "serviceAccountName", "env", "volumes"]
ENV = {"env": [{"name": "A", "value": "1"}]}
KINDS = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")


def values(relays: list[str], replays: list[str]) -> dict[str, Any]:
    return merged(
        nested("policy.admission", True),
        nested("policy.relays.forbid", relays),
        nested("policy.replays.forbid", replays),
    )


def test_the_operator_gets_the_same_lists() -> None:
    settings = load(environment(only(render(values(RELAYS, ["sparkConf"])), "Deployment")))
    assert settings.forbid == {"OutboxRelay": tuple(RELAYS), "OutboxReplay": ("sparkConf",)}


def test_every_kind_has_a_list_of_what_it_may_forbid() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    lists = schema["properties"]["policy"]["properties"]
    lists.pop("admission")
    enums = {name: of["properties"]["forbid"]["items"]["enum"] for name, of in lists.items()}
    assert enums == {kind.policy: [*kind.forbiddable] for kind in CUSTOM_KINDS.values()}
    given = environment(only(render(), "Deployment"))
    wanted = {PREFIX + kind.forbid_setting.upper() for kind in CUSTOM_KINDS.values()}
    assert {name for name in given if name.endswith("_FORBID")} == wanted


def test_there_is_no_policy_without_a_list_or_unless_it_is_asked_for() -> None:
    assert names(render(nested("policy.admission", True))) == names(render())
    assert names(render(nested("policy.relays.forbid", RELAYS))) == names(render())


def test_the_policy_names_the_fields_that_the_operator_judges_by() -> None:
    objects = render(values([], list(FIELDS)))
    (policy,) = of_kind(objects, KINDS[0])
    said = [v["message"].split()[0] for v in policy["spec"]["validations"]]
    assert said == [f"spec.{path}" for paths in FIELDS.values() for path in paths]


def test_it_holds_where_the_operator_watches() -> None:
    objects = render(merged(values(RELAYS, []), nested("watch.namespaces", ["shop"])))
    (binding,) = of_kind(objects, KINDS[1])
    (selected,) = binding["spec"]["matchResources"]["namespaceSelector"]["matchExpressions"]
    assert selected["values"] == ["shop"]


@pytest.fixture
def forbidding(server: Kube, namespace: Namespace) -> Iterator[Any]:
    """Have the policies of these lists in the test's namespace, until it ends."""
    made: list[tuple[str, str]] = []

    def api(kind: str) -> Any:
        version = "admissionregistration.k8s.io/v1"
        return server.dynamic.resources.get(api_version=version, kind=kind)

    def forbid(relays: list[str], replays: list[str]) -> None:
        given = merged(values(relays, replays), nested("watch.namespaces", [namespace.name]))
        objects = render(given, release=namespace.name, namespace=namespace.name)
        for kind in KINDS:
            for found in of_kind(objects, kind):
                api(kind).create(body=found)
                made.append((kind, found["metadata"]["name"]))

    yield forbid
    for kind, name in made:
        api(kind).delete(name=name)


def attempted(namespace: Namespace, body: dict[str, Any]) -> str:
    """What the server says against it; a dry run."""
    api = namespace.kube.dynamic.resources.get(api_version=API_VERSION, kind=body["kind"])
    plain = {**body, "metadata": {"name": body["metadata"]["name"]}}
    try:
        api.create(body=plain, namespace=namespace.name, dry_run="All")
    except ApiException as error:
        return str(error.body)
    return ""


def wait_refused(namespace: Namespace, body: dict[str, Any]) -> str:
    """A policy takes effect a moment after it was made."""
    return namespace.wait(lambda: attempted(namespace, body), 30, "the policy is in effect")


BAD_RELAYS: list[tuple[str, str, dict[str, Any]]] = [
    ("image", "spec.pod.image", {"image": "mine:1"}),
    ("serviceAccountName", "spec.pod.serviceAccountName", {"serviceAccountName": "x"}),
    (
        "serviceAccountName",
        "spec.pod.serviceAccountAnnotations",
        {"serviceAccountAnnotations": {"a": "b"}},
    ),
    ("env", "spec.pod.env", ENV),
    ("podSettings", "spec.pod", {"nodeSelector": {"a": "b"}}),
]


@pytest.mark.parametrize(("name", "field", "pod"), BAD_RELAYS)
def test_the_server_refuses_a_relay_that_sets_it_and_takes_others(
    namespace: Namespace, forbidding: Any, name: str, field: str, pod: dict[str, Any]
) -> None:
    forbidding([name], [])
    said = wait_refused(namespace, relay_body(pod=pod))
    assert f"{field} may not be set here" in said
    assert "policy.relays.forbid" in said
    assert forbidden_fields({"pod": pod}, [name])  # and so says the operator
    taken: list[dict[str, Any]] = [{}, {"pod": {"env": []}}, {"pod": {}}]
    for spec in taken:
        assert attempted(namespace, relay_body(**spec)) == ""
    assert attempted(namespace, replay_body(pod={"image": "mine:1"})) == ""


def test_the_server_refuses_replays_likewise(namespace: Namespace, forbidding: Any) -> None:
    forbidding([], ["sparkConf", "podSettings"])
    assert "spec.sparkConf" in wait_refused(namespace, replay_body(sparkConf={"spark.a": "b"}))
    assert "spec.pod " in wait_refused(namespace, replay_body(pod={"image": "mine:1"}))
    assert attempted(namespace, replay_body()) == ""


def test_what_was_there_before_can_still_be_changed_in_other_ways(
    namespace: Namespace, forbidding: Any
) -> None:
    body = relay_body(pod={"image": "mine:1"})
    namespace.apply({**body, "metadata": {"name": "orders"}})
    forbidding(["image", "podSettings"], [])
    wait_refused(namespace, relay_body("bills", pod={"image": "mine:1"}))
    api = namespace.kube.dynamic.resources.get(api_version=API_VERSION, kind="OutboxRelay")

    def patch(content: dict[str, Any]) -> None:
        api.patch(
            body=content,
            name="orders",
            namespace=namespace.name,
            content_type="application/merge-patch+json",
        )

    patch({"metadata": {"finalizers": ["outbox.dev/retire"]}})  # as the operator does
    patch({"spec": {"batchSize": 5}})
    with pytest.raises(ApiException, match="may not be set here"):
        patch({"spec": {"pod": {"image": "mine:2"}}})
    patch({"spec": {"pod": {"image": None}}, "metadata": {"finalizers": []}})

"""Children that lost their owner are adopted by their marks; what is somebody's is left alone."""

import asyncio
import copy
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from kubernetes.aio import client, config

from dev.cluster.clusters import exports
from fixtures.cluster import Kube, Namespace
from fixtures.made_resources import relay_body
from fixtures.operators import Resources, operating
from outbox_operator.kube.api import Api, ApiError, configuration
from outbox_operator.kube.writer import Writer
from outbox_operator.relay.decide.children import decide_children
from outbox_operator.relay.seen import RelaySeen
from outbox_operator.relay.spec.resource import OutboxRelay
from outbox_operator.settings import OperatorSettings

UNTYPED_CONFIG: Any = config
KINDS = {
    "ServiceAccount": ("v1", "orders-relay"),
    "NetworkPolicy": ("networking.k8s.io/v1", "orders-relay"),
    "Service": ("v1", "orders-relay"),
    "Deployment": ("apps/v1", "orders-relay"),
    "CronJob": ("batch/v1", "orders-reaper"),
}


@pytest.fixture
def resources(server: Kube, namespace: Namespace) -> Resources:
    return Resources(namespace)


def owners(resources: Resources) -> dict[str, tuple[str, str | None]]:
    """Of each child its uid, and that of its owner."""
    found = {}
    for kind, (version, name) in KINDS.items():
        found[kind] = ownership(resources.wait_child(kind, name, version))
    (config,) = resources.config_maps()
    return {**found, "ConfigMap": ownership(config)}


def ownership(body: dict[str, Any]) -> tuple[str, str | None]:
    refs = body["metadata"].get("ownerReferences") or [{"uid": None}]
    return body["metadata"]["uid"], refs[0]["uid"]


def test_what_a_deleted_relay_left_behind_belongs_to_the_next_of_its_name(
    resources: Resources, tmp_path: Path
) -> None:
    with operating(resources.namespace, tmp_path / "log"):
        resources.relay()
        before = owners(resources)
        resources.delete(cascade="Orphan")
        resources.namespace.wait(
            lambda: resources.namespace.get("outbox.dev/v1alpha1", "OutboxRelay", "orders") is None,
            30,
            "the relay is gone",
        )
        orphans = owners(resources)
        assert orphans == {kind: (uid, None) for kind, (uid, _) in before.items()}

        resources.relay()
        mine = resources.get()["metadata"]["uid"]
        adopted = {kind: (uid, mine) for kind, (uid, _) in before.items()}
        resources.namespace.wait(lambda: owners(resources) == adopted, 30, "all are adopted")
        resources.wait_reason("Degraded", "SecretMissing")  # and not NameTaken


def orphan(kind: str = "Deployment", **metadata: Any) -> dict[str, Any]:
    """A child of the relay `orders`, as a restore without owner references leaves it."""
    relay = OutboxRelay.parse(relay_body(replicas=0))
    wanted = decide_children(relay, RelaySeen(), OperatorSettings(), 0).wanted
    (body,) = [copy.deepcopy(child) for child in wanted if child["kind"] == kind]
    del body["metadata"]["ownerReferences"], body["metadata"]["namespace"]
    body["metadata"] |= metadata
    return body


def test_a_deployment_that_selects_otherwise_is_not_adopted_and_people_hear_why(
    resources: Resources, tmp_path: Path
) -> None:
    body = orphan()
    for labels in (
        body["spec"]["selector"]["matchLabels"],
        body["spec"]["template"]["metadata"]["labels"],
    ):
        labels["app.kubernetes.io/name"] = "relay"
    resources.namespace.apply(body)
    version = resources.wait_child()["metadata"]["generation"]
    with operating(resources.namespace, tmp_path / "log"):
        resources.relay()
        told = resources.wait_reason("Degraded", "NameTaken")["message"]
    assert "selector" in told
    assert resources.wait_child()["metadata"]["generation"] == version


@pytest.mark.parametrize(
    "metadata",
    [
        {"annotations": {}},
        {"annotations": {"outbox.dev/resource": "bills"}},
        {"labels": {"app.kubernetes.io/managed-by": "outbox-operator"}},
        {"ownerReferences": [{"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "y"}]},
    ],
    ids=["without-the-name", "of-another-name", "without-labels", "of-another-owner"],
)
def test_what_does_not_bear_all_marks_or_is_somebodys_is_left_alone(
    resources: Resources, tmp_path: Path, metadata: dict[str, Any]
) -> None:
    if "ownerReferences" in metadata:  # otherwise the garbage collector removes it
        resources.namespace.apply(
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}}
        )
        owner = resources.wait_child("ConfigMap", "x", "v1")
        metadata["ownerReferences"][0]["uid"] = owner["metadata"]["uid"]
    resources.namespace.apply(orphan("Service", **metadata))
    before = resources.wait_child("Service", version="v1")["metadata"]
    with operating(resources.namespace, tmp_path / "log"):
        resources.relay()
        resources.wait_reason("Degraded", "NameTaken")
    after = resources.wait_child("Service", version="v1")["metadata"]
    assert after["resourceVersion"] == before["resourceVersion"]


# That very object --------------------------------------------------------------------------------


def run(kube: Kube, work: Any) -> Any:
    """With the operator's own door to the API server."""

    async def test() -> Any:
        settings = configuration()
        kubeconfig = exports(kube.cluster, {})["KUBECONFIG"]
        await UNTYPED_CONFIG.load_kube_config(config_file=kubeconfig, client_configuration=settings)
        api = Api(client.ApiClient(settings))
        try:
            coroutine: Coroutine[Any, Any, Any] = work(api)
            return await coroutine
        finally:
            await api.close()

    return asyncio.run(test())


def the_config_map(relay: OutboxRelay) -> dict[str, Any]:
    wanted = decide_children(relay, RelaySeen(), OperatorSettings(), 0).wanted
    (body,) = [child for child in wanted if child["kind"] == "ConfigMap"]
    return body


@pytest.mark.parametrize("again", [True, False], ids=["made-by-another", "gone"])
def test_a_child_that_is_another_since_it_was_seen_is_neither_changed_nor_made(
    resources: Resources, again: bool
) -> None:
    resources.relay()
    relay = OutboxRelay.parse(resources.get())
    child = the_config_map(relay)
    name = child["metadata"]["name"]
    changed = copy.deepcopy(child)
    changed["metadata"]["labels"]["app.kubernetes.io/part-of"] = "another"
    core, where = resources.namespace.kube.core, resources.namespace.name

    async def work(api: Api) -> None:
        writer = Writer(api)
        seen = await writer.apply(relay, [child], RelaySeen())
        core.delete_namespaced_config_map(name, where)
        if again:
            core.create_namespaced_config_map(
                where, {"metadata": {"name": name}, "data": {"mine": "yes"}}
            )
        with pytest.raises(ApiError) as refused:
            await writer.apply(relay, [changed], seen)
        assert refused.value.status == 409

    run(resources.namespace.kube, work)
    found = resources.child("ConfigMap", name, "v1")
    assert (found or {}).get("data") == ({"mine": "yes"} if again else None)


def test_a_resource_that_is_another_since_it_was_seen_is_not_held(resources: Resources) -> None:
    resources.relay(deletionPolicy="Delete")
    relay = OutboxRelay.parse(resources.get())
    resources.delete()
    resources.relay(deletionPolicy="Delete")

    async def work(api: Api) -> None:
        with pytest.raises(ApiError) as refused:
            await Writer(api).set_finalizers(relay, ["outbox.dev/retire"])
        assert refused.value.status == 409

    run(resources.namespace.kube, work)
    assert "finalizers" not in resources.get()["metadata"]


def test_a_copy_that_a_person_made_is_never_removed(resources: Resources, tmp_path: Path) -> None:
    """With all our marks, but it belongs to nobody."""
    with operating(resources.namespace, tmp_path / "log") as operator:
        resources.relay()
        resources.wait_reason("Progressing", "AsExpected")
        (config,) = resources.config_maps()
        meta = {name: config["metadata"][name] for name in ("labels", "annotations")}
        copied = {"metadata": {"name": "orders-relay-backup", **meta}, "data": {"mine": "yes"}}
        resources.namespace.apply({"apiVersion": "v1", "kind": "ConfigMap", **copied})
        resources.patch({"spec": {"batchSize": 77}})  # so that another one is removed
        resources.namespace.wait(
            lambda: config["metadata"]["name"] not in names_of(resources), 30, "the old one is gone"
        )
        looks = operator.looks()
        resources.namespace.wait(lambda: operator.looks() >= looks + 2, 30, "it has looked")
    assert "orders-relay-backup" in names_of(resources)


def names_of(resources: Resources) -> set[str]:
    return {config["metadata"]["name"] for config in resources.config_maps()}

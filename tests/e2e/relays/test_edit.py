"""
An OutboxRelay is edited: its pods are renewed while events flow, what is taken out goes; a mistake
changes nothing.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import yaml
from kubernetes.client.exceptions import ApiException

from fixtures.cluster import Kube
from fixtures.shop import MERGE, Shop

DEFINITION = "outboxrelays.outbox.dev"


def config(shop: Shop) -> dict[str, Any]:
    found = shop.child("ConfigMap")
    assert found is not None
    read: dict[str, Any] = yaml.safe_load(found["data"]["relay.yaml"])
    return read


def test_an_edit_renews_the_pods_while_events_flow(shop: Shop) -> None:
    shop.apply(ordering="Key")
    shop.wait_settled()
    before = shop.relay_pods()
    emitting = shop.emit(3000, seconds=8)
    shop.wait_published(1)
    shop.patch({"batchSize": 100})
    shop.wait_condition("Progressing", "True", "RollingOut")
    shop.wait_settled()
    assert config(shop)["batchSize"] == 100
    assert not before & shop.relay_pods()
    shop.finish(emitting, 60)
    told = shop.arrived(3000)
    assert (told["missing"], told["disorder"]) == (0, 0)


def pods_of(shop: Shop) -> dict[str, Any]:
    found = shop.child("Deployment")
    assert found is not None
    spec: dict[str, Any] = found["spec"]["template"]["spec"]
    return spec


def variables(shop: Shop) -> set[str]:
    (container,) = pods_of(shop)["containers"]
    return {variable["name"] for variable in container["env"]}


def test_what_is_taken_out_of_the_spec_goes(shop: Shop) -> None:
    placed = {"kubernetes.io/os": "linux"}
    added = [{"name": "STAYS", "value": "1"}, {"name": "GOES", "value": "1"}]
    shop.apply(pod={"nodeSelector": placed, "env": added, "labels": {"team": "shop"}})
    shop.wait_settled()
    assert pods_of(shop)["nodeSelector"] == placed
    assert variables(shop) >= {"STAYS", "GOES"}
    assert [c["name"] for c in pods_of(shop)["initContainers"]] == ["migrate"]
    before = shop.relay_pods()

    fewer = {"nodeSelector": None, "env": added[:1], "labels": None}
    shop.patch({"pod": fewer, "store": {"postgresql": {"manageSchema": False}}})
    shop.namespace.wait(lambda: not pods_of(shop).get("initContainers"), 30, "no more migration")
    shop.wait_settled()
    assert not pods_of(shop).get("nodeSelector")
    assert variables(shop) & {"STAYS", "GOES"} == {"STAYS"}
    after = shop.relay_pods()
    assert after
    assert not before & after
    selector = "app.kubernetes.io/instance=orders,app.kubernetes.io/component=relay"
    running = [p for p in shop.namespace.pods(selector) if p.metadata.name in after]
    assert not any("team" in p.metadata.labels for p in running)
    shop.finish(shop.emit(200), 60)
    assert shop.arrived(200)["missing"] == 0


def test_an_edit_that_is_refused_changes_nothing(shop: Shop) -> None:
    shop.apply()
    shop.wait_settled()
    before, pods, running = shop.resource(), shop.relay_pods(), config(shop)
    with pytest.raises(ApiException) as refused:
        shop.patch({"batchSize": 0})
    assert refused.value.status == 422
    assert "batchSize" in str(refused.value.body)
    after = shop.resource()
    assert after["spec"] == before["spec"]
    assert after["metadata"]["generation"] == before["metadata"]["generation"]
    assert (shop.relay_pods(), config(shop)) == (pods, running)


@contextmanager
def definition_without_rules(kube: Kube) -> Iterator[None]:
    """As after an upgrade of the operator alone, with the definitions of an older release."""
    api = kube.dynamic.resources.get(
        api_version="apiextensions.k8s.io/v1", kind="CustomResourceDefinition"
    )
    versions = api.get(name=DEFINITION).to_dict()["spec"]["versions"]
    (version,) = versions
    schema = version["schema"]["openAPIV3Schema"]
    spec = schema["properties"]["spec"]
    loose = {k: v for k, v in spec.items() if k != "x-kubernetes-validations"}
    assert loose != spec
    properties = {**schema["properties"], "spec": loose}
    without = {**version, "schema": {"openAPIV3Schema": {**schema, "properties": properties}}}

    def use(some: list[dict[str, Any]]) -> None:
        api.patch(name=DEFINITION, body={"spec": {"versions": some}}, content_type=MERGE)

    use([without])
    try:
        yield
    finally:
        use(versions)


def test_a_spec_that_only_the_operator_refuses_is_told_and_what_runs_goes_on(shop: Shop) -> None:
    shop.apply()
    shop.wait_settled()
    pods, running = shop.relay_pods(), config(shop)
    with definition_without_rules(shop.namespace.kube):

        def is_taken() -> bool:
            """The server takes a moment to work by another definition."""
            try:
                shop.patch({"lease": "2s"})
            except ApiException as refused:
                if refused.status != 422:
                    raise
                return False
            return True

        shop.namespace.wait(is_taken, 30, "a lease that is shorter than the publisher's timeout")
        found = shop.wait_condition("Degraded", "True", "SpecInvalid")
        assert "lease (2s)" in found["message"]
        shop.wait_condition("Ready", "False", "SpecInvalid")
        assert (shop.relay_pods(), config(shop)) == (pods, running)
        shop.finish(shop.emit(500), 60)
        assert shop.arrived(500)["missing"] == 0
        shop.patch({"lease": "7s"})
        shop.wait_settled()
    shop.wait_condition("Degraded", "False")
    assert config(shop)["lease"] == "7s"

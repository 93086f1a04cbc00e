"""Definitions of a newer version, whose defaults stand in every resource that is read."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest

from fixtures.api_server import apply_definitions, definitions
from fixtures.cluster import MANAGER, Kube, Namespace
from fixtures.corpus import KINDS
from fixtures.made_resources import relay_body, replay_body
from outbox_operator.relay.decide.children import decide_children
from outbox_operator.relay.seen import RelaySeen
from outbox_operator.relay.spec.resource import OutboxRelay
from outbox_operator.settings import OperatorSettings
from outbox_operator.shared.objects import API_VERSION

NEW = {"type": "object", "default": {}, "properties": {"depth": {"type": "integer", "default": 3}}}


def newer(crd: dict[str, Any]) -> dict[str, Any]:
    """With a field more that has a default, in the spec and in what is in it."""
    made = copy.deepcopy(crd)
    (version,) = made["spec"]["versions"]
    spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    for place in (spec, spec["pod"]["properties"]):
        place["fromTheFuture"] = NEW
    return made


@pytest.fixture(scope="module")
def newer_server(server: Kube) -> Iterator[Kube]:
    api = server.dynamic.resources.get(
        api_version="apiextensions.k8s.io/v1", kind="CustomResourceDefinition"
    )
    for crd in map(newer, definitions()):
        name = crd["metadata"]["name"]
        api.server_side_apply(body=crd, name=name, field_manager=MANAGER, force_conflicts=True)
    yield server
    apply_definitions(server)


@pytest.mark.parametrize("body", [relay_body, replay_body], ids=["relay", "replay"])
def test_an_older_operator_goes_on_with_resources_of_newer_definitions(
    newer_server: Kube, namespace: Namespace, body: Any
) -> None:
    given = body(namespace=namespace.name)
    given["metadata"] = {"name": given["metadata"]["name"]}
    api = newer_server.dynamic.resources.get(api_version=API_VERSION, kind=given["kind"])
    api.create(body=given, namespace=namespace.name)

    def filled_in() -> dict[str, Any] | None:
        found: dict[str, Any] = api.get(given["metadata"]["name"], namespace.name).to_dict()
        return found if "fromTheFuture" in found["spec"] else None

    found = namespace.wait(filled_in, 60, "the new default")  # the server takes them up by and by
    assert found["spec"]["fromTheFuture"] == {"depth": 3}
    parsed = KINDS[given["kind"]].parse(found)
    assert set(parsed.unknown_fields) == {"spec.fromTheFuture", "spec.pod.fromTheFuture"}
    if isinstance(parsed, OutboxRelay):
        assert decide_children(parsed, RelaySeen(), OperatorSettings(), 1).wanted

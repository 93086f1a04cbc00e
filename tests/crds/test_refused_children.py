"""
What the schema of a relay cannot judge, and an API server refuses in a child: a person is told, and
it is no fault of the server that passes.
"""

import json
from typing import Any

import pytest
from kubernetes.client.exceptions import ApiException

from fixtures.cluster import MANAGER, Kube, Namespace
from fixtures.made_resources import relay_body
from outbox_operator.kube.api import ApiError
from outbox_operator.kube.refusals import refusal_of
from outbox_operator.relay.decide.children import decide_children
from outbox_operator.relay.seen import RelaySeen
from outbox_operator.relay.spec.resource import OutboxRelay
from outbox_operator.settings import OperatorSettings
from outbox_operator.shared.seen import Refusal

SPREAD = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}
BAD: dict[str, dict[str, Any]] = {
    "an unknown field of affinity": {"pod": {"affinity": {"nodeAffinity": {"preferred": []}}}},
    "an unknown field of a constraint": {"pod": {"topologySpreadConstraints": [SPREAD | {"x": 1}]}},
    "an unknown field of egress": {"networkPolicy": {"egress": [{"to": [{"pods": {}}]}]}},
    "an unknown source of a volume": {"pod": {"volumes": [{"name": "a", "disk": {}}]}},
    "an unknown field of a security context": {"pod": {"securityContext": {"user": 1}}},
}


def refusals(kube: Kube, namespace: str, spec: dict[str, Any]) -> list[Refusal]:
    relay = OutboxRelay.parse(relay_body(namespace=namespace, **spec))
    found: list[Refusal] = []
    for child in decide_children(relay, RelaySeen(), OperatorSettings(), 1).wanted:
        api = kube.dynamic.resources.get(api_version=child["apiVersion"], kind=child["kind"])
        name = child["metadata"]["name"]
        how = {"name": name, "namespace": namespace, "field_manager": MANAGER, "dry_run": "All"}
        try:
            api.server_side_apply(body=child, **how)
        except ApiException as error:
            answer = ApiError.of(error.status, json.dumps(json.loads(error.body or "{}")).encode())
            found.append(refusal_of(child["kind"], name, answer))
    return found


@pytest.mark.parametrize("spec", BAD.values(), ids=BAD)
def test_a_child_that_cannot_be_is_refused_for_good(
    server: Kube, namespace: Namespace, spec: dict[str, Any]
) -> None:
    found = refusals(server, namespace.name, spec)
    assert found
    assert all(refusal.message for refusal in found)


def test_children_of_a_plain_relay_are_taken(server: Kube, namespace: Namespace) -> None:
    assert refusals(server, namespace.name, {}) == []

"""What the API server does with our two kinds: defaults, scaling, status, columns."""

import json
from typing import Any

import hypothesis
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from fixtures.api_server import servers_refusal
from fixtures.cluster import Kube, Namespace
from fixtures.corpus import Case, cases, models_refusal
from fixtures.gitops import kstatus
from fixtures.made_resources import relay_body, replay_body
from outbox_operator.kinds import RelayCondition
from outbox_operator.relay.spec.resource import OutboxRelay, RelayStatus
from outbox_operator.replay.spec.resource import OutboxReplay
from outbox_operator.shared.conditions import Condition
from outbox_operator.shared.objects import API_VERSION
from outbox_operator.shared.reasons import Reason

NOON = "2026-06-01T12:00:00Z"


def resources(server: Kube, kind: str) -> Any:
    return server.dynamic.resources.get(api_version=API_VERSION, kind=kind)


def made(server: Kube, namespace: Namespace, body: dict[str, Any]) -> dict[str, Any]:
    """Created in the test's namespace; as the API server then has it."""
    meta = {"name": body["metadata"]["name"]}
    api = resources(server, body["kind"])
    there: dict[str, Any] = api.create(
        body={**body, "metadata": meta}, namespace=namespace.name
    ).to_dict()
    return there


def test_the_servers_defaults_of_a_relay_are_the_models(server: Kube, namespace: Namespace) -> None:
    body = relay_body()
    there = made(server, namespace, body)
    assert OutboxRelay.parse(there).spec == OutboxRelay.parse(body).spec
    assert there["spec"]["lease"] == "1m"  # written out, so that people see what holds
    assert there["spec"]["retry"]["maxDelay"] == "5m"


def test_the_servers_defaults_of_a_replay_are_the_models(
    server: Kube, namespace: Namespace
) -> None:
    body = replay_body()
    there = made(server, namespace, body)
    assert OutboxReplay.parse(there).spec == OutboxReplay.parse(body).spec
    assert there["spec"]["executor"]["instances"] == 2


@pytest.mark.parametrize("case", [c for c in cases("good") if len(c.bodies) == 1], ids=str)
def test_what_the_server_keeps_is_what_was_sent(server: Kube, case: Case) -> None:
    (body,) = case.bodies
    api = resources(server, body["kind"])
    kept = api.create(body=body, namespace="default", dry_run="All").to_dict()
    kind = OutboxRelay if body["kind"] == "OutboxRelay" else OutboxReplay
    assert kind.parse(kept).spec == kind.parse(body).spec


def test_a_relay_is_scaled_like_a_deployment(server: Kube, namespace: Namespace) -> None:
    made(server, namespace, relay_body())
    assert scale(server, namespace, {"spec": {"replicas": 3}}) == 3
    there = resources(server, "OutboxRelay").get(name="orders", namespace=namespace.name)
    assert there.spec.replicas == 3


def test_a_relay_that_scales_itself_is_not_scaled_by_others(
    server: Kube, namespace: Namespace
) -> None:
    made(server, namespace, relay_body(autoscaling={"maxReplicas": 5}))
    with pytest.raises(Exception, match="replicas and autoscaling"):
        scale(server, namespace, {"spec": {"replicas": 3}})


def scale(server: Kube, namespace: Namespace, patch: dict[str, Any]) -> int:
    """As kubectl scale, a HorizontalPodAutoscaler and KEDA do it."""
    api = resources(server, "OutboxRelay").subresources["scale"]
    content_type = "application/merge-patch+json"
    answer = api.patch(
        body=patch, name="orders", namespace=namespace.name, content_type=content_type
    )
    return int(answer.spec.replicas)


def status_of_a_relay() -> RelayStatus:
    condition = Condition.model_validate(
        {
            "type": RelayCondition.READY,
            "status": "True",
            "reason": Reason.AS_EXPECTED,
            "message": "2 of 2 pods are ready",
            "observedGeneration": 1,
            "lastTransitionTime": NOON,
        }
    )
    return RelayStatus.model_validate(
        {
            "observedGeneration": 1,
            "conditions": [condition],
            "replicas": 2,
            "readyReplicas": 2,
            "pods": "2/2",
            "rolledOut": {"generation": 1, "configMap": "orders-relay-0123456789"},
            "selector": "app.kubernetes.io/instance=orders",
            "relayName": "shop/orders",
            "version": "0.1.0",
            "backlog": {
                "pending": 1234,
                "claimed": 20,
                "dead": 3,
                "oldestPendingSeconds": 4.5,
                "approximate": True,
            },
            "lag": "4s",
            "throughput": {"published": 250.5, "failed": 0, "dead": 0},
            "topErrors": [
                {"errorClass": "event", "code": "MSG_SIZE_TOO_LARGE", "text": "…", "count": 3}
            ],
            "observedAt": NOON,
        }
    )


def test_a_status_is_kept_as_it_was_written_and_shown_in_columns(
    server: Kube, namespace: Namespace
) -> None:
    body = made(server, namespace, relay_body())
    written = status_of_a_relay()
    api = resources(server, "OutboxRelay")
    whole = {**body, "status": written.model_dump(mode="json", by_alias=True, exclude_none=True)}
    api.status.replace(
        body=whole, namespace=namespace.name, query_params=[("fieldValidation", "Strict")]
    )
    there = api.get(name="orders", namespace=namespace.name).to_dict()
    assert OutboxRelay.parse(there).status == written
    row = table(server, f"namespaces/{namespace.name}/outboxrelays")
    assert {name: row[name] for name in ("Ready", "Replicas", "Pending", "Dead", "Lag")} == {
        "Ready": "True", "Replicas": "2/2", "Pending": 1234, "Dead": 3, "Lag": "4s",
    }  # fmt: skip
    assert row["Rate"] == 250.5
    assert (row["Reason"], row["Relay"]) == ("AsExpected", "shop/orders")
    assert (row["Paused"], row["Ordering"]) == (False, "None")


@pytest.mark.parametrize("body", [relay_body(), replay_body()], ids=lambda body: body["kind"])
def test_a_new_resource_is_not_taken_for_done_before_an_operator_has_seen_it(
    server: Kube, namespace: Namespace, body: dict[str, Any]
) -> None:
    there = made(server, namespace, body)
    assert there["status"]["observedGeneration"] == -1
    assert kstatus(there) == "InProgress"
    kind = OutboxRelay if body["kind"] == "OutboxRelay" else OutboxReplay
    assert kind.parse(there).status.observed_generation == -1  # and the operator reads it


def test_a_status_leaves_the_spec_alone(server: Kube, namespace: Namespace) -> None:
    body = made(server, namespace, relay_body())
    changed = {**body, "spec": {**body["spec"], "batchSize": 5}, "status": {"replicas": 2}}
    api = resources(server, "OutboxRelay")
    api.status.replace(body=changed, namespace=namespace.name)
    there = api.get(name="orders", namespace=namespace.name)
    assert (there.spec.batchSize, there.status.replicas) == (2000, 2)


def table(server: Kube, path: str) -> dict[str, Any]:
    """The only row, as kubectl get -o wide shows it."""
    answer = server.dynamic.request(
        "get",
        f"/apis/{API_VERSION}/{path}",
        header_params={"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"},
        serialize=False,
    )
    shown = json.loads(answer.data)
    (row,) = shown["rows"]
    names = [column["name"] for column in shown["columnDefinitions"]]
    return dict(zip(names, row["cells"], strict=True))


# Whatever people write ----------------------------------------------------------------------

NUMBERS = st.one_of(st.integers(0, 120_000).map(str), st.decimals(0, 100, places=2).map(str))


def some(units: list[str]) -> st.SearchStrategy[str]:
    part = st.tuples(NUMBERS, st.sampled_from(units)).map("".join)
    return st.lists(part, min_size=1, max_size=3).map("".join)


DURATIONS = st.one_of(some(["ms", "s", "m", "h"]), st.integers(0, 110_000).map("{}d".format))
SLIPS = st.one_of(some(["ms", "s", "d", "us", "w", ""]), st.sampled_from(["", "s", "d", "1 s"]))
ALIKE = hypothesis.settings(
    deadline=None,
    max_examples=200,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def both_judge_alike(server: Kube, **spec: Any) -> None:
    body = relay_body(**spec) | {"metadata": {"name": "orders"}}
    assert bool(servers_refusal(server, "default", body)) == bool(models_refusal(body))


@ALIKE
@given(max_age=st.one_of(DURATIONS, SLIPS))
def test_both_judge_a_duration_alike(server: Kube, max_age: str) -> None:
    both_judge_alike(server, retry={"maxAge": max_age})


@ALIKE
@given(lease=DURATIONS, timeout=DURATIONS)
def test_both_compare_durations_alike(server: Kube, lease: str, timeout: str) -> None:
    kafka = {"bootstrapServers": "kafka:9092", "deliveryTimeout": timeout}
    both_judge_alike(server, lease=lease, publisher={"kafka": kafka})

"""OutboxRelay: its defaults, its names, and what a mistake is told."""

from datetime import timedelta
from typing import Any

import pytest
from pydantic import ValidationError

from fixtures.made_resources import KAFKA, outbox_relay, relay_body
from outbox_core.contract.settings import Behaviour, RelaySettings, explain
from outbox_operator.relay.spec.resource import OutboxRelay

CERT_ALONE = {"certSecretRef": {"name": "a", "key": "b"}}


def mistake(**spec: Any) -> str:
    with pytest.raises(ValidationError) as caught:
        outbox_relay(**spec)
    return explain(caught.value)


def test_only_store_and_broker_are_required() -> None:
    spec = outbox_relay().spec
    assert spec.store.postgresql.dsn_secret_ref.key == "dsn"
    assert spec.store.postgresql.manage_schema
    assert (spec.replicas, spec.autoscaling, spec.paused) == (1, None, False)
    assert spec.deletion_policy == "Retain"
    assert spec.reaper.schedule == "* * * * *"
    assert (spec.network_policy.enabled, spec.network_policy.egress) == (True, None)


@pytest.mark.parametrize("field", sorted(Behaviour.model_fields))
def test_how_a_relay_works_has_the_contracts_default(field: str) -> None:
    settings = RelaySettings.model_validate({"name": "a", "publisher": {"kafka": KAFKA}})
    assert getattr(outbox_relay().spec, field) == getattr(settings, field)


def test_a_pod_may_take_as_long_to_stop_as_its_publisher() -> None:
    assert outbox_relay().spec.drain == timedelta(seconds=35)
    assert outbox_relay(drainTimeout="40s").spec.drain == timedelta(seconds=40)


def test_relays_of_two_namespaces_do_not_share_a_name() -> None:
    assert outbox_relay(name="b.c", namespace="a").relay_name == "a/b.c"
    assert outbox_relay(name="c", namespace="a-b").relay_name == "a-b/c"


def test_a_relay_can_take_over_another_name() -> None:
    assert outbox_relay(relayName="orders").relay_name == "orders"


def test_a_name_too_long_for_the_database_is_refused_unless_another_is_given() -> None:
    assert len(outbox_relay(name="n" * 189, namespace="s" * 63).relay_name) == 253
    assert "shorten it, or set spec.relayName" in mistake(name="n" * 190)
    assert outbox_relay(name="n" * 190, relayName="short").relay_name == "short"


def test_a_resource_of_another_kind_is_refused() -> None:
    body = relay_body() | {"kind": "OutboxReplay"}
    with pytest.raises(ValidationError, match="kind"):
        OutboxRelay.parse(body)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"batchSize": "5"}, "spec.batchSize: Input should be a valid integer"),
        ({"paused": "yes"}, "spec.paused: Input should be a valid boolean"),
        ({"replicas": -1}, "spec.replicas: Input should be greater than or equal to 0"),
        ({"publisher": {}}, "spec.publisher: name exactly one publisher: kafka"),
        ({"lease": "30s"}, "spec: lease (30s) must be longer than the publisher's"),
        ({"replicas": 3, "autoscaling": {"maxReplicas": 5}}, "spec: replicas and autoscaling"),
        (
            {"autoscaling": {"minReplicas": 6, "maxReplicas": 5}},
            "spec.autoscaling: minReplicas must not be above maxReplicas",
        ),
        (
            {"publisher": {"kafka": {**KAFKA, "tls": CERT_ALONE}}},
            "spec.publisher.kafka.tls: certSecretRef and keySecretRef go together",
        ),
        (
            {"publisher": {"kafka": {**KAFKA, "sasl": {"mechanism": "OAUTHBEARER"}}}},
            "spec.publisher.kafka.sasl: OAUTHBEARER needs tokenSecretRef or serviceAccountToken",
        ),
        (
            {"publisher": {"kafka": {**KAFKA, "config": {"client.rack": 1}}}},
            "spec.publisher.kafka.config.client.rack: Input should be a valid string",
        ),
        (
            {"pod": {"env": [{"name": "OUTBOX_DSN", "value": "x"}]}},
            "spec.pod.env.0: OUTBOX_DSN is set by the operator",
        ),
        ({"pod": {"tolerations": [{"value": "a"}]}}, "spec.pod.tolerations.0: operator Equal"),
        ({"reaper": {"schedule": "* *"}}, "spec.reaper.schedule: String should match pattern"),
    ],
)  # fmt: skip
def test_a_mistake_is_reported_with_its_path(spec: dict[str, Any], said: str) -> None:
    assert f"  {said}" in mistake(**spec)


def test_a_status_of_a_newer_operator_is_read() -> None:
    body = relay_body() | {"status": {"replicas": 2, "fromTheFuture": {"a": 1}}}
    assert OutboxRelay.parse(body).status.replicas == 2


@pytest.mark.parametrize("field", ["http", "identity"])
def test_what_the_pod_settles_cannot_be_set(field: str) -> None:
    assert outbox_relay(**{field: {}}).unknown_fields == (f"spec.{field}",)

"""Open egress: where it is shown that events choose hosts and nothing limits them."""

from typing import Any

import pytest

from fixtures.corpus import examples
from fixtures.made_resources import KAFKA, outbox_relay
from fixtures.made_seen import NOW, deployment, pod, report, retiring, seen
from outbox_operator.relay.decide.egress import open_egress
from outbox_operator.relay.spec.resource import NetworkPolicy, OutboxRelay
from outbox_operator.relay.status import decide_status
from outbox_operator.shared.conditions import Condition
from outbox_operator.shared.seen import Secret

HOSTS = {"allowedHosts": ["*.example.com"]}
PAYLOAD = {"request": "Payload", **HOSTS}
TO_TENANTS = {"url": "https://{tenant_id}.example.com/orders", **HOSTS}
SOR = {"url": "https://{entity_type}.example.com", "request": "SorUpdate", "method": "PUT", **HOSTS}
FIXED = {"url": "https://hooks.example.com/{tenant_id}"}

POSTGRES = {"to": [{"ipBlock": {"cidr": "10.0.0.0/8"}}], "ports": [{"port": 5432}]}


def degraded(around: Any = None, **spec: Any) -> Condition:
    healthy = seen(pod(report=report()), deployment=deployment())
    status = decide_status(outbox_relay(**spec), around or healthy, 1, None, NOW)
    return next(c for c in status.conditions if c.type == "Degraded")


@pytest.mark.parametrize("http", [PAYLOAD, TO_TENANTS, SOR])
def test_it_is_shown_with_its_cure_where_events_choose_the_host(http: dict[str, Any]) -> None:
    found = degraded(publisher={"http": http})
    assert (found.status, found.reason) == ("False", "EgressOpen")
    assert "list in networkPolicy.egress" in found.message
    assert "networkPolicy.egressElsewhere" in found.message
    assert "networkPolicy.enabled" not in found.message


@pytest.mark.parametrize("publisher", [{"kafka": KAFKA}, {"http": FIXED}])
def test_where_the_spec_names_the_host_nothing_is_shown(publisher: dict[str, Any]) -> None:
    found = degraded(publisher=publisher)
    assert (found.status, found.reason) == ("False", "AsExpected")


@pytest.mark.parametrize(
    "policy",
    [
        {"egress": [POSTGRES]},
        {"egress": [{"ports": [{"port": 443}]}]},
        {"egress": []},  # DNS, and what policies of one's own allow
        {"egressElsewhere": True},
        {"enabled": False, "egressElsewhere": True},
    ],
)
def test_a_policy_that_limits_them_ends_it(policy: dict[str, Any]) -> None:
    assert degraded(publisher={"http": PAYLOAD}, networkPolicy=policy).reason == "AsExpected"


@pytest.mark.parametrize(
    "policy",
    [
        {"egress": [POSTGRES, {}]},  # everything
        {"egress": [{"to": [], "ports": []}]},  # to Kubernetes that is everything, too
        {"enabled": False},
        {"enabled": False, "egress": [POSTGRES]},  # which nobody creates
    ],
)
def test_a_policy_that_limits_nothing_does_not(policy: dict[str, Any]) -> None:
    found = degraded(publisher={"http": PAYLOAD}, networkPolicy=policy)
    assert found.reason == "EgressOpen"
    assert ("set networkPolicy.enabled to true" in found.message) == ("enabled" in policy)


def test_trouble_comes_first() -> None:
    missing = seen(secrets=[Secret("orders-db", None)], deployment=deployment(ready=0))
    found = degraded(missing, publisher={"http": PAYLOAD})
    assert (found.status, found.reason) == ("True", "SecretMissing")


def test_of_a_relay_that_goes_it_is_not_shown() -> None:
    relay = retiring(publisher={"http": PAYLOAD})
    assert open_egress(relay)
    status = decide_status(relay, seen(), 0, None, NOW)
    assert "EgressOpen" not in {c.reason for c in status.conditions}


def test_no_example_is_open() -> None:
    bodies = [body for case in examples() for body in case.bodies]
    relays = [OutboxRelay.parse(body) for body in bodies if body["kind"] == "OutboxRelay"]
    by_events = [r for r in relays if r.spec.publisher.http and open_egress(without_policy(r))]
    assert by_events, "examples/relay-http.yaml lets events choose"
    assert not any(map(open_egress, relays))


def without_policy(relay: OutboxRelay) -> OutboxRelay:
    spec = relay.spec.model_copy(update={"network_policy": NetworkPolicy()})
    return relay.model_copy(update={"spec": spec})

"""The one finalizer: only where the database must forget the relay before the resource goes."""

from typing import Any

from fixtures.made_resources import outbox_relay
from fixtures.made_seen import deployment, leaving, retiring, seen
from outbox_operator.relay.decide.children import fixed_replicas
from outbox_operator.relay.decide.deletion import RETIRE, decide_finalizers
from outbox_operator.relay.spec.resource import OutboxRelay
from outbox_operator.shared.seen import Refusal


def relay(policy: str, *finalizers: str) -> OutboxRelay:
    made = outbox_relay(deletionPolicy=policy)
    metadata = made.metadata.model_copy(update={"finalizers": finalizers})
    return made.model_copy(update={"metadata": metadata})


def job(outcome: str) -> dict[tuple[str, str], Any]:
    return {
        ("Job", "orders-retire"): {"status": {"conditions": [{"type": outcome, "status": "True"}]}}
    }


def test_a_relay_that_is_kept_needs_none() -> None:
    assert decide_finalizers(relay("Retain"), seen()) == []


def test_a_relay_that_is_forgotten_gets_one_and_others_stay() -> None:
    assert decide_finalizers(relay("Delete", "other/one"), seen()) == ["other/one", RETIRE]


def test_who_changes_the_policy_gets_rid_of_it() -> None:
    assert decide_finalizers(relay("Retain", RETIRE, "other/one"), seen()) == ["other/one"]
    assert decide_finalizers(leaving(relay("Retain", RETIRE)), seen()) == []


def test_it_goes_when_the_database_has_forgotten_and_not_before() -> None:
    going = leaving(relay("Delete", RETIRE))
    assert decide_finalizers(going, seen(deployment=deployment(0))) == [RETIRE]
    assert decide_finalizers(going, seen(children=job("Failed"))) == [RETIRE]
    assert decide_finalizers(going, seen(children=job("Complete"))) == []


def test_a_namespace_that_goes_is_not_held_up() -> None:
    going = leaving(relay("Delete", RETIRE))
    refusal = Refusal(
        "Job", "orders-retire", "namespace is terminating", namespace_terminating=True
    )
    assert decide_finalizers(going, seen(refusals=[refusal])) == []


def test_how_many_pods_where_nobody_scales() -> None:
    assert fixed_replicas(outbox_relay(replicas=3)) == 3
    assert fixed_replicas(outbox_relay(replicas=3, paused=True)) == 1
    assert fixed_replicas(outbox_relay(replicas=0, paused=True)) == 0
    assert fixed_replicas(retiring(replicas=3)) == 0
    assert fixed_replicas(outbox_relay(autoscaling={"maxReplicas": 3})) is None

"""Which objects are ours though nobody owns them, and which never are."""

from typing import Any

import pytest

from fixtures.made_resources import outbox_relay, outbox_replay
from fixtures.made_seen import leaving, seen
from outbox_operator.relay.decide.children import decide_children
from outbox_operator.replay.children.access import build_replay_account
from outbox_operator.settings import OperatorSettings
from outbox_operator.shared.marks import is_adoptable, why_not_adoptable
from outbox_operator.shared.objects import Resource

RELAY = outbox_relay()


def orphan(kind: str = "ConfigMap", **metadata: Any) -> dict[str, Any]:
    wanted = decide_children(RELAY, seen(), OperatorSettings(), 1).wanted
    (child,) = [c for c in wanted if c["kind"] == kind]
    kept = {k: v for k, v in child["metadata"].items() if k != "ownerReferences"}
    return {**child, "metadata": kept | metadata}


@pytest.mark.parametrize("kind", ["ConfigMap", "Deployment", "CronJob", "Service"])
def test_what_bears_all_our_marks_is_adopted(kind: str) -> None:
    assert is_adoptable(orphan(kind), RELAY)
    assert is_adoptable(orphan(kind, ownerReferences=[]), RELAY)


@pytest.mark.parametrize(
    "metadata",
    [
        {"ownerReferences": [{"uid": "another"}]},
        {"deletionTimestamp": "2026-03-01T12:00:00Z"},
        {"annotations": {}},
        {"annotations": {"outbox.dev/resource": "bills"}},
        {"labels": {}},
        {"labels": {**orphan()["metadata"]["labels"], "app.kubernetes.io/managed-by": "Helm"}},
        {"labels": {**orphan()["metadata"]["labels"], "app.kubernetes.io/instance": "bills"}},
    ],
)
def test_what_lacks_one_is_not(metadata: dict[str, Any]) -> None:
    assert not is_adoptable(orphan(**metadata), RELAY)


@pytest.mark.parametrize("kind", ["Job", "SparkApplication"])
def test_what_was_done_for_another_is_never_adopted(kind: str) -> None:
    """A Job that is complete would say that the database has forgotten this relay."""
    assert not is_adoptable({**orphan(), "kind": kind}, RELAY)


def test_what_the_garbage_collector_made_nobodys_stays_so() -> None:
    assert not is_adoptable(orphan(), leaving(RELAY, "orphan"))


def test_a_relay_does_not_adopt_what_a_replay_of_its_name_left() -> None:
    replay = outbox_replay(name="orders")
    account = build_replay_account(replay)
    del account["metadata"]["ownerReferences"]
    adopting: list[tuple[Resource, bool]] = [(RELAY, False), (replay, True)]
    for resource, expected in adopting:
        assert is_adoptable(account, resource) is expected


def test_a_deployment_with_another_selector_is_refused_with_it() -> None:
    child = orphan("Deployment")
    assert why_not_adoptable(child, child) is None
    other = {**child, "spec": {**child["spec"], "selector": {"matchLabels": {"a": "b"}}}}
    assert "selector" in (why_not_adoptable(child, other) or "")

"""What a relay had before a change stays as long as a pod may need it, and no longer."""

from dataclasses import replace
from typing import Any

import pytest

from fixtures.made_resources import outbox_relay
from fixtures.made_seen import CONFIG_NOW, deployment, leaving, seen
from outbox_operator.relay.children.config_map import build_config_map
from outbox_operator.relay.decide.children import decide_children
from outbox_operator.relay.decide.leftovers import KEPT_CONFIG_MAPS, decide_leftovers
from outbox_operator.relay.seen import RelaySeen
from outbox_operator.relay.spec.resource import OutboxRelay, RelayStatus, RolledOut
from outbox_operator.settings import OperatorSettings
from outbox_operator.shared.reasons import Reason
from outbox_operator.shared.seen import Ends, Refusal, Restraint

ACCOUNT = ("ServiceAccount", "orders-relay")
NOT_OURS = outbox_relay(pod={"serviceAccountName": "mine"})
OWNED = [{"uid": NOT_OURS.metadata.uid}]
COMPLETE = deployment(2)
UNFINISHED = {
    "no new pod yet": deployment(2, updated=0),
    "a new pod beside the old ones": deployment(2, updated=1, existing=3),
    "old pods beside all new ones": deployment(2, existing=3),
    "new pods that are not ready": deployment(2, ready=1),
    "not yet seen by its controller": deployment(2, observedGeneration=0),
    "none at all": None,
}


def made(name: str, minute: int = 0) -> dict[tuple[str, str], Any]:
    at = f"2026-03-01T12:{minute:02d}:00Z"
    meta = {"name": name, "creationTimestamp": at, "ownerReferences": OWNED}
    return {("ConfigMap", name): {"metadata": meta}}


def around(live: dict[str, Any] | None, *configs: str, **given: Any) -> RelaySeen:
    """With ConfigMaps, made one after another, and an account."""
    children: dict[tuple[str, str], Any] = {
        ACCOUNT: {"metadata": {"name": "orders-relay", "ownerReferences": OWNED}}
    }
    for minute, name in enumerate(configs):
        children |= made(name, minute)
    return seen(deployment=live, children=children, **given)


def removed(where: RelaySeen, relay: OutboxRelay = NOT_OURS, replicas: int = 2) -> set[str]:
    """Names of ConfigMaps, and the kind of the account."""
    children = decide_children(relay, where, OperatorSettings(), replicas)
    found = decide_leftovers(relay, where, children, replicas)
    assert len(found) == len(set(found))
    return {kind if kind == "ServiceAccount" else name for kind, name in found}


def current(relay: OutboxRelay = NOT_OURS) -> str:
    name: str = build_config_map(relay)["metadata"]["name"]
    return name


def test_what_is_left_goes_when_every_pod_is_a_new_one() -> None:
    where = around(COMPLETE, "orders-relay-old", "orders-relay-bad", current())
    assert removed(where) == {"orders-relay-old", "orders-relay-bad", "ServiceAccount"}


@pytest.mark.parametrize("live", UNFINISHED.values(), ids=UNFINISHED)
def test_nothing_goes_before(live: dict[str, Any] | None) -> None:
    assert removed(around(live, "orders-relay-old", current())) == set()


def test_nothing_goes_while_the_change_itself_is_refused() -> None:
    refused = [Refusal("Deployment", "orders-relay", "spec is invalid")]
    assert removed(around(COMPLETE, "orders-relay-old", current(), refusals=refused)) == set()


def test_what_a_pod_still_has_stays_until_that_is_gone() -> None:
    where = around(COMPLETE, "orders-relay-old", current(), mounted=frozenset({"orders-relay-old"}))
    assert removed(where) == {"ServiceAccount"}


def test_its_own_account_stays_where_no_other_is_named() -> None:
    relay = outbox_relay()
    assert removed(around(COMPLETE, current(relay)), relay) == set()


def test_without_pods_nothing_old_is_needed() -> None:
    assert removed(around(deployment(0), "orders-relay-old"), replicas=0) == {
        "orders-relay-old",
        "ServiceAccount",
    }


def test_the_one_that_the_first_operators_changed_goes_as_well() -> None:
    assert "orders-relay" in removed(around(COMPLETE, "orders-relay", current()))


def test_what_others_made_stays() -> None:
    assert removed(around(COMPLETE, "orders-other", "orders-relayed"), outbox_relay()) == set()


def test_of_many_bad_changes_only_the_last_stay_and_what_worked_and_what_pods_have() -> None:
    bad = [f"orders-relay-bad{n:02d}" for n in range(20)]
    worked = RelayStatus(rolled_out=RolledOut(generation=1, config_map="orders-relay-good"))
    relay = NOT_OURS.model_copy(update={"status": worked})
    where = around(
        deployment(2, updated=1, existing=3),
        "orders-relay-good",
        "orders-relay-used",
        *bad,
        current(),
        mounted=frozenset({"orders-relay-used"}),
    )
    assert removed(where, relay) == set(bad[:-KEPT_CONFIG_MAPS])


def test_nothing_is_taken_from_one_that_is_being_deleted() -> None:
    going = leaving(NOT_OURS, "other/one")
    assert removed(around(COMPLETE, CONFIG_NOW, "orders-relay-old"), going) == set()


def test_an_account_that_the_spec_names_stays_though_it_is_ours() -> None:
    named = outbox_relay(pod={"serviceAccountName": "orders-relay"})
    assert removed(around(COMPLETE, current(named)), named) == set()


def test_an_account_that_the_next_pod_is_stays() -> None:
    live = deployment(2)
    live["spec"]["template"]["spec"]["serviceAccountName"] = "orders-relay"
    assert removed(around(live, current())) == set()


def test_what_nobody_owns_may_be_a_persons_copy_and_stays() -> None:
    where = around(COMPLETE, "orders-relay-backup", current())
    del where.children["ConfigMap", "orders-relay-backup"]["metadata"]["ownerReferences"]
    assert removed(where) == {"ServiceAccount"}


@pytest.mark.parametrize("reason", [Reason.ROLLOUT_WAITING, Reason.FORBIDDEN])
def test_while_the_change_is_not_written_all_stays(reason: Reason) -> None:
    held = Restraint(Ends.BY_ITSELF, reason, "", blocks_writes=reason == Reason.FORBIDDEN)
    where = replace(around(COMPLETE, "orders-relay-old", current()), restraint=held)
    assert removed(where) == set()

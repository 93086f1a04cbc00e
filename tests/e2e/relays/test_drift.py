"""Children that somebody edits or deletes are repaired; what is not ours is left alone."""

from typing import Any

import pytest
from kubernetes.client.exceptions import ApiException

from fixtures import workloads
from fixtures.shop import Shop
from outbox_operator.relay.children.config_map import build_config_map
from outbox_operator.relay.spec.resource import OutboxRelay

SECONDS = 20
"""Until it is repaired, on a machine that is busy."""

EDITS: dict[str, dict[str, Any]] = {
    "ServiceAccount": {"automountServiceAccountToken": True},
    "ConfigMap": {},  # nobody can change more of it than its metadata
    "Service": {"spec": {"publishNotReadyAddresses": None}},
    "NetworkPolicy": {"spec": {"ingress": None}},
    "PodDisruptionBudget": {"spec": {"maxUnavailable": 2}},
    "Deployment": {"spec": {"paused": True, "strategy": {"rollingUpdate": {"maxUnavailable": 2}}}},
    "CronJob": {"spec": {"schedule": "0 0 1 1 *", "suspend": False}},
}
ADDED = {"metadata": {"annotations": {"example.com/team": "shop"}, "labels": {"team": "shop"}}}


def name_of(shop: Shop, kind: str) -> str:
    match kind:
        case "CronJob":
            return "orders-reaper"
        case "ConfigMap":
            return shop.config_map()
    return "orders-relay"


def child(shop: Shop, kind: str) -> dict[str, Any]:
    return shop.child(kind, name_of(shop, kind)) or {}


def content(shop: Shop, kind: str) -> dict[str, Any]:
    kept = child(shop, kind)
    return {k: v for k, v in kept.items() if k not in ("metadata", "status")}


def test_what_was_edited_is_repaired_and_what_was_added_stays(shop: Shop) -> None:
    shop.apply(replicas=2)
    shop.wait_settled(2)
    pods = shop.relay_pods()
    before = {kind: content(shop, kind) for kind in EDITS}
    for kind, edit in EDITS.items():
        shop.edit_child(kind, name_of(shop, kind), {**ADDED, **edit})
    for kind, was in before.items():
        shop.namespace.wait(
            lambda kind=kind, was=was: content(shop, kind) == was,  # type: ignore[misc]
            SECONDS,
            f"the {kind} as it was",
        )
        meta = child(shop, kind)["metadata"]
        assert (meta["annotations"]["example.com/team"], meta["labels"]["team"]) == ("shop", "shop")
    assert shop.relay_pods() == pods


def test_a_child_that_loses_our_labels_is_found_again(shop: Shop) -> None:
    shop.apply()
    shop.wait_settled()
    label = "app.kubernetes.io/managed-by"
    nothing = {"labels": {label: None}, "annotations": {"outbox.dev/resource": None}}
    shop.edit_child("Service", "orders-relay", {"metadata": nothing})
    shop.namespace.wait(
        lambda: child(shop, "Service")["metadata"].get("labels", {}).get(label),
        SECONDS,
        "the label",
    )


def test_what_was_deleted_is_made_again(shop: Shop) -> None:
    shop.apply(replicas=2)
    shop.wait_settled(2)
    before = {kind: child(shop, kind)["metadata"]["uid"] for kind in EDITS}
    names = {kind: name_of(shop, kind) for kind in EDITS}
    for kind, name in names.items():
        shop.delete_child(kind, name)
    for kind, uid in before.items():
        shop.namespace.wait(
            lambda kind=kind, uid=uid: (  # type: ignore[misc]
                (shop.child(kind, names[kind]) or {}).get("metadata", {}).get("uid", uid) != uid
            ),
            SECONDS,
            f"another {kind}",
        )
    shop.wait_settled(2)
    shop.finish(shop.emit(500), 60)
    assert shop.arrived(500)["missing"] == 0


def test_what_pods_read_cannot_be_edited(shop: Shop) -> None:
    shop.apply()
    shop.wait_settled()
    with pytest.raises(ApiException) as refused:
        shop.edit_child("ConfigMap", shop.config_map(), {"data": {"relay.yaml": "name: another"}})
    assert refused.value.status == 422


def test_a_foreign_object_of_that_name_is_told_and_never_overwritten(shop: Shop) -> None:
    resource = shop.relay()
    resource["metadata"]["namespace"] = shop.namespace.name
    name = build_config_map(OutboxRelay.parse(resource))["metadata"]["name"]
    theirs = {"theirs.yaml": "left: alone"}
    shop.namespace.apply(workloads.config_map(name, theirs))
    before = shop.child("ConfigMap", name)
    shop.apply()
    told = shop.wait_condition("Degraded", "True", "NameTaken")
    assert f"ConfigMap {name}" in told["message"]
    shop.wait_condition("Ready", "False", "NameTaken")
    shop.wait_condition("Stalled", "True", "NameTaken")
    assert shop.child("ConfigMap", name) == before
    assert not child(shop, "Deployment")  # its pods would read what is not theirs

    shop.delete_child("ConfigMap", name)
    shop.wait_settled()
    shop.wait_condition("Degraded", "False")
    assert "relay.yaml" in child(shop, "ConfigMap")["data"]
    reasons = [reason for reason, _ in shop.events()]
    assert reasons.count("NameTaken") == 1
    assert "Recovered" in reasons

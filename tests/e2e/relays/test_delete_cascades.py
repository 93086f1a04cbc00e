"""
However an OutboxRelay is deleted, its policy decides about its place in the database: foreground,
background, orphaned, held by somebody else, or sooner than the operator could hold it.
"""

import pytest

from fixtures.installation import Installation
from fixtures.shop import API, VERSIONS, Shop

GONE = 90
WAITING = 5
LATER = (
    "SELECT count(outbox.emit('order.due', 'x'::text, available_at => now() + interval '1 hour'))"
    f" FROM generate_series(1, {WAITING})"
)
"""They wait, however fast others go out."""
OURS = "outbox.dev/retire"
OTHER = "example.com/held"
CASCADES = ("Foreground", "Background")


def ready(shop: Shop, policy: str) -> None:
    """A relay for which events wait."""
    shop.apply(deletionPolicy=policy)
    shop.wait_settled()
    assert shop.sql(LATER) == [str(WAITING)]


def pending(shop: Shop) -> int:
    return int(shop.sql("SELECT count(*) FROM outbox.deliveries WHERE state = 'PENDING'")[0])


def jobs(shop: Shop) -> set[str]:
    """Names of all that there ever were, but for those of the reaper."""
    listed = shop.namespace.kube.core.list_namespaced_event(
        shop.namespace.name, field_selector="involvedObject.kind=Job"
    )
    names = {event.involved_object.name for event in listed.items}
    return {name for name in names if not name.startswith("orders-reaper")}


def assert_kept(shop: Shop) -> None:
    assert pending(shop) == WAITING
    assert shop.sql("SELECT action FROM outbox.audit") == []
    assert shop.sql("SELECT active FROM outbox.relay") == ["t"]
    assert jobs(shop) == set()


def assert_forgotten(shop: Shop) -> None:
    assert pending(shop) == 0
    assert shop.sql("SELECT action FROM outbox.audit ORDER BY id") == ["retire", "drop"]
    assert shop.sql("SELECT count(*) FROM outbox.relay WHERE active") == ["0"]
    assert jobs(shop) == {"orders-retire"}
    assert "RetirementSkipped" not in {reason for reason, _ in shop.events()}


def is_gone(shop: Shop) -> bool:
    """The resource; its children may stay."""
    return shop.namespace.get(API, "OutboxRelay", "orders") is None


@pytest.mark.parametrize("cascade", CASCADES)
def test_a_relay_that_is_kept_leaves_its_place(shop: Shop, cascade: str) -> None:
    ready(shop, "Retain")
    shop.delete(cascade=cascade)
    shop.wait_gone(GONE)
    assert_kept(shop)


@pytest.mark.parametrize("cascade", CASCADES)
def test_a_relay_that_is_forgotten_goes_after_its_place(shop: Shop, cascade: str) -> None:
    ready(shop, "Delete")
    shop.delete(cascade=cascade)
    shop.wait_gone(GONE)
    assert_forgotten(shop)


def test_an_orphaned_relay_that_is_kept_goes_on_publishing(shop: Shop) -> None:
    ready(shop, "Retain")
    pods = shop.relay_pods()
    shop.delete(cascade="Orphan")
    shop.namespace.wait(lambda: is_gone(shop), GONE, "the resource is gone")
    shop.finish(shop.emit(100), 60)
    shop.wait_published(100)
    assert shop.relay_pods() == pods
    deployment = shop.child("Deployment")
    assert deployment is not None
    assert "ownerReferences" not in deployment["metadata"]
    assert_kept(shop)


def test_an_orphaned_relay_that_is_to_be_forgotten_stays_and_says_why(shop: Shop) -> None:
    ready(shop, "Delete")
    pods = shop.relay_pods()
    shop.delete(cascade="Orphan")
    told = shop.wait_condition("Degraded", "True", "RetirementFailed")
    assert "kubectl delete" in told["message"]
    assert shop.relay_pods() == pods
    assert_kept(shop)
    for kind in set(VERSIONS) - {"Job"}:  # what the message says
        for name in shop.children(kind):
            shop.delete_child(kind, name)
    shop.wait_gone(GONE)
    assert_forgotten(shop)


def test_a_relay_that_is_kept_and_held_by_somebody_else_works_until_it_goes(shop: Shop) -> None:
    ready(shop, "Retain")
    shop.hold([OTHER])
    pods = shop.relay_pods()
    shop.delete()
    assert OTHER in shop.wait_condition("Ready", "False", "Deleting")["message"]
    shop.finish(shop.emit(100), 60)
    shop.wait_published(100)
    assert shop.relay_pods() == pods
    assert_kept(shop)
    shop.hold([])
    shop.wait_gone(GONE)
    assert_kept(shop)


@pytest.mark.parametrize("cascade", CASCADES)
def test_a_relay_that_somebody_else_holds_is_forgotten_and_then_theirs(
    shop: Shop, cascade: str
) -> None:
    ready(shop, "Delete")
    shop.hold([OTHER, OURS])
    shop.delete(cascade=cascade)
    shop.namespace.wait(
        lambda: shop.resource()["metadata"]["finalizers"] == [OTHER], GONE, "ours is removed"
    )
    assert_forgotten(shop)
    shop.hold([])
    shop.wait_gone(GONE)
    assert_forgotten(shop)


def test_who_waits_until_a_change_is_observed_can_rely_on_it(shop: Shop) -> None:
    ready(shop, "Retain")
    shop.patch({"deletionPolicy": "Delete"})
    generation = shop.resource()["metadata"]["generation"]
    shop.namespace.wait(
        lambda: shop.status()["observedGeneration"] == generation, GONE, "it is observed"
    )
    shop.delete()
    shop.wait_gone(GONE)
    assert_forgotten(shop)


def test_who_does_not_wait_is_told_what_became_of_it(shop: Shop) -> None:
    ready(shop, "Retain")
    shop.patch({"deletionPolicy": "Delete"})
    shop.delete()
    shop.wait_gone(GONE)
    if pending(shop) == 0:  # the operator was faster
        assert_forgotten(shop)
        return
    assert_kept(shop)
    shop.namespace.wait(
        lambda: "RetirementSkipped" in {reason for reason, _ in shop.events()}, 30, "an Event"
    )


def test_a_policy_that_came_too_late_is_told_while_somebody_else_holds_it(
    shop: Shop, installed: Installation
) -> None:
    ready(shop, "Retain")
    shop.hold([OTHER])
    with installed.stopped():
        shop.patch({"deletionPolicy": "Delete"})
        shop.delete()
    told = shop.wait_condition("Degraded", "True", "RetirementSkipped")
    assert f"outbox-relay retire --relay {shop.namespace.name}/orders" in told["message"]
    shop.hold([])
    shop.wait_gone(GONE)
    assert_kept(shop)
    assert [reason for reason, _ in shop.events()].count("RetirementSkipped") == 1


def owners(shop: Shop) -> dict[str, list[str]]:
    """Of each kind of child that stays, by uid."""
    found = {}
    for kind in ("Deployment", "Service", "ServiceAccount", "ConfigMap"):
        child = shop.child(kind)
        assert child is not None, kind
        found[kind] = [owner["uid"] for owner in child["metadata"].get("ownerReferences") or ()]
    return found


@pytest.mark.parametrize("policy", ["Retain", "Delete"])
def test_a_relay_restored_without_owner_references_has_its_children_back(
    shop: Shop, policy: str
) -> None:
    """As a backup brings it: the resource is another one, and its children are nobody's."""
    ready(shop, "Retain")  # with `Delete` it would stay until its children are gone
    pods = shop.relay_pods()
    shop.delete(cascade="Orphan")
    shop.namespace.wait(lambda: is_gone(shop), GONE, "the resource is gone")
    assert set(map(tuple, owners(shop).values())) == {()}
    shop.apply(deletionPolicy=policy)
    shop.wait_settled()
    assert set(map(tuple, owners(shop).values())) == {(shop.resource()["metadata"]["uid"],)}
    assert shop.relay_pods() == pods
    shop.finish(shop.emit(100), 60)
    shop.wait_published(100)
    assert_kept(shop)
    shop.delete()
    shop.wait_gone(GONE)
    (assert_kept if policy == "Retain" else assert_forgotten)(shop)


@pytest.mark.parametrize("policy", ["Retain", "Delete"])
def test_a_namespace_that_is_deleted_is_not_held_up_and_leaves_the_place(
    shop: Shop, policy: str
) -> None:
    """Nothing new can be made in it, so nobody could make the database forget the relay."""
    ready(shop, policy)
    core, name = shop.namespace.kube.core, shop.namespace.name
    core.delete_namespace(name)
    shop.namespace.wait(
        lambda: name not in {n.metadata.name for n in core.list_namespace().items},
        GONE,
        "the namespace is gone",
    )
    assert pending(shop) == WAITING
    assert shop.sql("SELECT active FROM outbox.relay") == ["t"]

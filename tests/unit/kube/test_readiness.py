"""Whether the operator is ready, and what is said of a watch that does not work."""

from dataclasses import replace

from outbox_operator.kube.watch.readiness import advice, readiness
from outbox_operator.kube.watch.state import Watch

REFUSED = (
    'configmaps is forbidden: User "system:serviceaccount:outbox-system:outbox-operator" cannot '
    'list resource "configmaps" in API group "" in the namespace "shop"'
)
WORKS = Watch("Pod", "pods", "shop", synced=True)
WAITS = Watch("ConfigMap", "configmaps", "shop")
FAILS = replace(WAITS, trouble=REFUSED, forbidden=True)
ELSEWHERE = Watch("Pod", "pods", "billing", synced=True)


def test_it_is_not_ready_before_it_watches_anything() -> None:
    assert not readiness([]).ready


def test_it_is_ready_when_every_watch_works() -> None:
    assert readiness([WORKS, replace(WAITS, synced=True)]).ready
    assert not readiness([WORKS, WAITS]).ready


def test_one_watch_that_does_not_work_is_named() -> None:
    found = readiness([WORKS, FAILS])
    assert not found.ready
    assert f"namespace shop: configmaps: {REFUSED}" in found.message


def test_a_namespace_that_cannot_be_watched_is_named_and_takes_no_other_out_of_service() -> None:
    found = readiness([WORKS, FAILS, ELSEWHERE])
    assert found.ready
    assert found.message.startswith("ready in 1 of 2 namespaces")
    assert "namespace shop: configmaps" in found.message


def test_at_the_start_every_namespace_is_waited_for() -> None:
    assert not readiness([WORKS, WAITS, ELSEWHERE]).ready


def test_no_namespace_that_works_is_not_ready() -> None:
    assert not readiness([FAILS, replace(FAILS, namespace="billing")]).ready


def test_a_missing_right_is_told_with_the_command_that_checks_it_and_the_charts_values() -> None:
    text = advice(FAILS)
    user = "system:serviceaccount:outbox-system:outbox-operator"
    assert f"`kubectl auth can-i list configmaps -n shop --as {user}`" in text
    assert "rbac.create=true and shop in watch.namespaces" in text
    everywhere = advice(replace(FAILS, namespace=None, resource="deployments.apps"))
    assert "`kubectl auth can-i list deployments.apps -A --as" in everywhere
    assert "rbac.create=true and no watch.namespaces" in everywhere


def test_anything_else_is_tried_again() -> None:
    text = advice(replace(FAILS, trouble="connection refused", forbidden=False))
    assert text.endswith("trying again")
    assert "can-i" not in text

"""An operator of some namespaces, in one of its own: it has no rights elsewhere, and needs none."""

import uuid
from collections.abc import Iterator, Mapping

import pytest

from fixtures.api_server import Right, may
from fixtures.cluster import RESTRICTED, SHOWN, UNTYPED, Kube, Namespace
from fixtures.installation import Installation
from fixtures.shop import API, Shop

RELEASE = "namespaced"
NEEDED: tuple[Right, ...] = (
    ("outbox.dev", "outboxrelays", "list"),
    ("outbox.dev", "outboxrelays/status", "patch"),
    ("apps", "deployments", "patch"),
    ("", "pods", "watch"),
    ("", "secrets", "get"),
)


@pytest.fixture
def elsewhere(kube: Kube) -> Iterator[Namespace]:
    """A namespace that nobody watches."""
    name = f"elsewhere-{uuid.uuid4().hex[:6]}"
    kube.core.create_namespace({"metadata": {"name": name}})
    yield Namespace(kube, name)
    kube.core.delete_namespace(name)


@pytest.fixture
def operator(
    kube: Kube, images: Mapping[str, str], namespace: Namespace, installed: Installation
) -> Iterator[Installation]:
    """It looks after the shop's namespace, while the one of the whole cluster is away."""
    name = f"operator-{uuid.uuid4().hex[:6]}"
    kube.core.create_namespace({"metadata": {"name": name, "labels": RESTRICTED}})
    made = Installation(kube, images, name, RELEASE)
    SHOWN.append(made.namespace)
    with installed.stopped():
        try:
            made.install(watch={"namespaces": [namespace.name]}, crds={"enabled": False})
            yield made
            SHOWN.remove(made.namespace)
            made.uninstall()
        finally:
            kube.core.delete_namespace(name)


def test_it_looks_after_its_namespaces_and_leaves_the_others_alone(
    shop: Shop, elsewhere: Namespace, operator: Installation
) -> None:
    elsewhere.apply(shop.relay())
    shop.apply(ordering="Key")
    shop.wait_settled()
    shop.finish(shop.emit(500), 60)
    arrived = shop.arrived(500)
    assert arrived["missing"] == arrived["disorder"] == 0
    shop.patch({"replicas": 2})
    shop.wait_settled(2)

    # It had all this time to notice the other one, which was there first.
    other = elsewhere.get(API, "OutboxRelay", "orders")
    assert other is not None
    assert other["status"] == {"observedGeneration": -1}  # as the definition has it
    assert elsewhere.get("apps/v1", "Deployment", "orders-relay") is None
    assert "forbidden" not in operator.log()
    assert operator.restarts() == 0

    account = f"system:serviceaccount:{operator.namespace.name}:outbox-operator"
    kube = shop.namespace.kube
    for right in NEEDED:
        assert may(kube, account, right, shop.namespace.name), right
        for where in (elsewhere.name, operator.namespace.name, ""):  # the last: everywhere
            assert not may(kube, account, right, where), (right, where)
    rbac = UNTYPED.client.RbacAuthorizationV1Api(kube.core.api_client)
    ours = f"app.kubernetes.io/instance={RELEASE}"
    for listed in (rbac.list_cluster_role, rbac.list_cluster_role_binding):
        assert [found.metadata.name for found in listed(label_selector=ours).items] == []

"""A node is drained under load: the budget lets one pod go at a time, and nothing is lost."""

from collections.abc import Iterator
from contextlib import contextmanager

from kubernetes.client.exceptions import ApiException

from fixtures.cluster import Kube
from fixtures.shop import Shop

MORE = """
    SELECT outbox.emit('order.placed', n::text, ordering_key => 'more')
      FROM generate_series(6000, 6099) n
"""


@contextmanager
def cordoned(kube: Kube) -> Iterator[None]:
    """All nodes, hence the only one: what is evicted finds no place until the end. Those that
    somebody had cordoned before stay so."""
    nodes = [n.metadata.name for n in kube.core.list_node().items if not n.spec.unschedulable]

    def mark(unschedulable: bool) -> None:
        for node in nodes:
            kube.core.patch_node(node, {"spec": {"unschedulable": unschedulable}})

    try:
        mark(True)
        yield
    finally:
        mark(False)


def evicted(shop: Shop, pod: str) -> bool:
    """As kubectl drain does it; False: the budget does not allow it now."""
    body = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": pod, "namespace": shop.namespace.name},
    }
    try:
        shop.namespace.kube.core.create_namespaced_pod_eviction(pod, shop.namespace.name, body)
    except ApiException as refused:
        if refused.status != 429:
            raise
        return False
    return True


def test_a_drained_node_takes_one_pod_at_a_time_and_loses_nothing(shop: Shop) -> None:
    shop.apply(replicas=2, ordering="Key", **shop.unhurried())  # who leaves gives back by itself
    shop.wait_settled(2)
    first, second = sorted(shop.relay_pods())
    emitting = shop.emit(6000, seconds=15)
    shop.wait_published(1)
    with cordoned(shop.namespace.kube):
        assert evicted(shop, first)
        shop.wait_condition("Degraded", "True", "PodsNotScheduled")
        assert shop.condition("Ready")["status"] == "True"  # the other one goes on
        assert not evicted(shop, second)
        sent = shop.published()
        shop.sql(MORE)  # whatever became of the others by now
        shop.wait_published(sent + 1)
    shop.wait_settled(2)
    shop.namespace.wait(lambda: evicted(shop, second), 60, "the second may go now")
    shop.namespace.wait(lambda: second not in shop.relay_pods(), 90, "the second gone")
    shop.wait_settled(2)
    shop.wait_condition("Degraded", "False")
    assert not {first, second} & shop.relay_pods()
    shop.finish(emitting, 60)
    assert shop.arrived(6100) == {"missing": 0, "again": 0, "disorder": 0}

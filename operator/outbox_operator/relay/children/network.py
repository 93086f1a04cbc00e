"""Service and NetworkPolicy: who finds the pods' port, and who may talk to it."""

from typing import Any

from outbox_operator.relay.spec.resource import OutboxRelay
from outbox_operator.shared.names import Manifest, owned, selector
from outbox_operator.shared.pod_parts import PORT, plain

DNS: Manifest = {"ports": [{"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}]}


def build_service(relay: OutboxRelay) -> Manifest:
    """For Prometheus. Without an address of its own: one asks each pod, never any of them."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": owned(relay, "relay"),
        "spec": {
            "clusterIP": "None",
            "selector": selector(relay, "relay"),
            "ports": [{"name": "http", "port": PORT, "targetPort": "http", "protocol": "TCP"}],
            "publishNotReadyAddresses": True,  # one that is not ready has the most to report
        },
    }


def build_network_policy(relay: OutboxRelay) -> Manifest:
    """In: the one port. Out: as asked for, and the names of those."""
    everyone = {k: v for k, v in selector(relay, "").items() if v}
    spec: dict[str, Any] = {
        "podSelector": {"matchLabels": everyone},
        "policyTypes": ["Ingress"],
        "ingress": [{"ports": [{"port": PORT, "protocol": "TCP"}]}],
    }
    egress = relay.spec.network_policy.egress
    if egress is not None:
        spec["policyTypes"] = ["Egress", "Ingress"]
        spec["egress"] = [DNS, *map(plain, egress)]
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": owned(relay, "relay"),
        "spec": spec,
    }

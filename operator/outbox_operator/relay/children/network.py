"""Service and NetworkPolicy: how the pods' port is found, and who may connect to it."""

from typing import Any

from outbox_operator.relay.spec.resource import OutboxRelay
from outbox_operator.shared.names import Manifest, owned, selector
from outbox_operator.shared.pod_parts import PORT, plain

DNS: Manifest = {"ports": [{"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}]}


def build_service(relay: OutboxRelay) -> Manifest:
    """For Prometheus. Headless, because each pod is scraped separately."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": owned(relay, "relay"),
        "spec": {
            "clusterIP": "None",
            "selector": selector(relay, "relay"),
            "ports": [{"name": "http", "port": PORT, "targetPort": "http", "protocol": "TCP"}],
            "publishNotReadyAddresses": True,  # a pod that is not ready has the most to report
        },
    }


def build_network_policy(relay: OutboxRelay) -> Manifest:
    """Ingress: only our port. Egress: as the spec requests, and DNS."""
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

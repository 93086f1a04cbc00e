"""ServiceAccount and PodDisruptionBudget: the pods' identity, and how many may go at once."""

from outbox_operator.relay.spec.resource import OutboxRelay
from outbox_operator.shared.accounts import build_account
from outbox_operator.shared.names import Manifest, owned, selector


def build_service_account(relay: OutboxRelay) -> Manifest:
    """Without rights, because a relay never talks to the API server."""
    return build_account(relay, relay.spec.pod)


def build_disruption_budget(relay: OutboxRelay) -> Manifest:
    """One pod at a time: the others take over its events while a node is drained."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": owned(relay, "relay"),
        "spec": {
            "maxUnavailable": 1,
            # Otherwise a node could not be drained while the broker is away and no pod is ready.
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {"matchLabels": selector(relay, "relay")},
        },
    }

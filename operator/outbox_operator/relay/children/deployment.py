"""The Deployment: the pods that relay."""

import hashlib
import json
from datetime import timedelta
from typing import Any

from outbox_operator.relay.children.pod import CONFIG_FILE, container, pod_template
from outbox_operator.relay.spec.resource import OutboxRelay
from outbox_operator.settings import OperatorSettings
from outbox_operator.shared.names import Manifest, owned, selector
from outbox_operator.shared.objects import REVISION
from outbox_operator.shared.pod_parts import PORT

SECRETS_HASH = "outbox.dev/secrets"
"""An annotation of the pods, so that a changed Secret replaces them."""
ACCOUNT_HASH = "outbox.dev/service-account"
"""An annotation of the pods, so that changed annotations of their account replace them: clouds
apply them when a pod is created."""

AFTER_DRAIN_TIME = timedelta(seconds=10)
"""For finalising the last events and giving back the rest."""
PROGRESS_DEADLINE_SECONDS = 300
"""A rollout in which no further pod becomes ready for this long counts as stuck."""


def build_deployment(
    relay: OutboxRelay,
    operator: OperatorSettings,
    replicas: int,
    config: str,
    secrets_hash: str,
) -> Manifest:
    template = pod_template(
        relay,
        operator,
        "relay",
        config,
        [relay_container(relay, operator)],
        {SECRETS_HASH: secrets_hash, **account_hash(relay)},
        **inits(relay, operator),
        terminationGracePeriodSeconds=grace(relay),
        topologySpreadConstraints=spread(relay),
    )
    spec: Manifest = {
        "replicas": replicas,
        "paused": False,  # a rollout that somebody paused would never be carried out
        "revisionHistoryLimit": 3,
        "progressDeadlineSeconds": PROGRESS_DEADLINE_SECONDS,
        "selector": {"matchLabels": selector(relay, "relay")},
        "strategy": strategy(relay),
        "template": revised(template),
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": owned(relay, "relay"),
        "spec": spec,
    }


def account_hash(relay: OutboxRelay) -> dict[str, str]:
    given = relay.spec.pod.service_account_annotations
    return {ACCOUNT_HASH: digest_of(dict(given))} if given else {}


def digest_of(value: Manifest) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:10]


def revised(template: Manifest) -> Manifest:
    """The template with its own digest, which sets pods of this revision apart from older ones."""
    metadata = template["metadata"]
    annotations = {**metadata["annotations"], REVISION: digest_of(template)}
    return {**template, "metadata": {**metadata, "annotations": annotations}}


def strategy(relay: OutboxRelay) -> Manifest:
    if relay.spec.paused:  # at once: a pod that still claims must not wait for its replacement
        return {"type": "Recreate"}
    # A new pod comes first, so that there are never fewer than requested. One at a time, because
    # every pod that comes or goes moves lanes.
    return {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}}


def relay_container(relay: OutboxRelay, operator: OperatorSettings) -> Manifest:
    return container(
        relay,
        operator,
        "relay",
        ["run", "--config", CONFIG_FILE],
        ports=[{"name": "http", "containerPort": PORT, "protocol": "TCP"}],
        readinessProbe=_probe("/readyz", periodSeconds=5, failureThreshold=2),
        livenessProbe=_probe("/healthz", periodSeconds=10, failureThreshold=6),
        # Python starts slowly on a busy node: do not kill it for that.
        startupProbe=_probe("/healthz", periodSeconds=1, failureThreshold=60),
    )


def inits(relay: OutboxRelay, operator: OperatorSettings) -> dict[str, Any]:
    if not relay.spec.store.postgresql.manage_schema:
        return {}
    return {"initContainers": [container(relay, operator, "migrate", ["migrate"])]}


def grace(relay: OutboxRelay) -> int:
    """Longer than the drain, so that no pod is killed while it gives back its claims."""
    return int((relay.spec.drain + AFTER_DRAIN_TIME).total_seconds())


def spread(relay: OutboxRelay) -> list[Manifest]:
    if given := relay.spec.pod.topology_spread_constraints:
        return [g.model_dump(mode="json", by_alias=True) for g in given]
    return [
        {
            "maxSkew": 1,
            "topologyKey": key,
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": selector(relay, "relay")},
        }
        for key in ("kubernetes.io/hostname", "topology.kubernetes.io/zone")
    ]


def _probe(path: str, **times: int) -> Manifest:
    return {
        "httpGet": {"path": path, "port": "http", "scheme": "HTTP"},
        "timeoutSeconds": 3,
        **times,
    }

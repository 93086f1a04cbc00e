"""
Names, labels and owners of children: the same for all of them.

Whatever a resource is called, its children's names are valid for their kind, and differ from those
of another resource.
"""

import hashlib
import re
from typing import Any

from outbox_operator.resources.objects import API_VERSION, Resource
from outbox_operator.resources.relay import OutboxRelay
from outbox_operator.resources.replay import OutboxReplay

Manifest = dict[str, Any]

LONGEST = 44
"""A CronJob's name has at most 52 characters, because its Jobs add 11; with our longest suffix.
The others would bear 63, but one name for all is easier to remember."""
LONGEST_OF_ATTEMPTS = 40
"""A pod is a host as well, whose name has at most 63 characters; to the attempt's name Spark adds
`-exec-` and a number."""
LONGEST_LABEL = 63

OWNER = "outbox.dev/resource"
"""An annotation: the resource's name in full, which a label could be too short for."""
MANAGED_BY = {"app.kubernetes.io/managed-by": "outbox-operator"}
"""By this label the operator watches its children, and nothing else in the cluster."""
NAMES = {"OutboxRelay": "outbox-relay", "OutboxReplay": "outbox-replay"}
"""What the children of each kind are: a relay's selectors find no pod of a replay that is called
the same."""


def fitting(name: str, longest: int) -> str:
    """The name itself where a service could be called so, else one that is made of it; two names
    never make the same."""
    if len(name) <= longest and re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name):
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    stem = re.sub(r"[^-a-z0-9]", "-", name)[: longest - 11].strip("-")
    return f"r-{stem}-{digest}"


def child_name(resource: Resource, role: str) -> str:
    """`orders-relay`, `orders-reaper`."""
    return f"{fitting(resource.metadata.name, LONGEST)}-{role}"


def labels(resource: Resource, role: str) -> dict[str, str]:
    """All of a child's labels."""
    return {**selector(resource, role), **MANAGED_BY, "app.kubernetes.io/part-of": "outbox"}


def selector(resource: Resource, role: str) -> dict[str, str]:
    """Those that tell apart; never changed, because a Deployment's selector cannot be."""
    return {
        "app.kubernetes.io/name": NAMES[resource.kind],
        "app.kubernetes.io/instance": fitting(resource.metadata.name, LONGEST_LABEL),
        "app.kubernetes.io/component": role,
    }


def owned(resource: Resource, role: str, name: str | None = None) -> Manifest:
    """The metadata of a child."""
    owner = {
        "apiVersion": API_VERSION,
        "kind": resource.kind,
        "name": resource.metadata.name,
        "uid": resource.metadata.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }
    return {
        "name": name or child_name(resource, role),
        "namespace": resource.metadata.namespace,
        "labels": labels(resource, role),
        "annotations": {OWNER: resource.metadata.name},
        "ownerReferences": [owner],
    }


def service_account_of(resource: OutboxRelay | OutboxReplay) -> str:
    role = "relay" if isinstance(resource, OutboxRelay) else "replay"
    return resource.spec.pod.service_account_name or child_name(resource, role)


def attempt_name(replay: OutboxReplay, number: int) -> str:
    """Of the Job or SparkApplication: `again-1`, `again-2`."""
    return f"{fitting(replay.metadata.name, LONGEST_OF_ATTEMPTS)}-{number}"

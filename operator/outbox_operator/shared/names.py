"""
Names, labels and owners of children: the same for all of them.

For any name of a resource, its children's names are valid for their kind, and differ from those of
every other resource.
"""

import hashlib
import re
from typing import Any, Protocol

from outbox_operator.kinds import CUSTOM_KINDS
from outbox_operator.shared.managed import Managed
from outbox_operator.shared.objects import API_VERSION, Metadata, Resource

Manifest = dict[str, Any]


class Named(Protocol):
    @property
    def metadata(self) -> Metadata: ...


NAME_CHARACTERS = 44
"""A CronJob's name has at most 52, because its Jobs add 11; the rest is for our longest
suffix. Other kinds allow 63, but one name for all is easier to remember."""
LABEL_CHARACTERS = 63

OWNER = "outbox.dev/resource"
"""An annotation: the resource's full name, which may be too long for a label."""
MANAGED_BY = {"app.kubernetes.io/managed-by": "outbox-operator"}
"""The label by which the operator watches its children, and nothing else in the cluster."""


def fitting(name: str, longest: int) -> str:
    """The name itself if it is valid for a Service, otherwise one derived from it. Two different
    names never give the same result."""
    if len(name) <= longest and re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name):
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    stem = re.sub(r"[^-a-z0-9]", "-", name)[: longest - 11].strip("-")
    return f"r-{stem}-{digest}"


def child_name(resource: Named, role: str) -> str:
    """`orders-relay`, `orders-reaper`."""
    return f"{fitting(resource.metadata.name, NAME_CHARACTERS)}-{role}"


def labels(resource: Resource, role: str) -> dict[str, str]:
    """All of a child's labels."""
    return {**selector(resource, role), **MANAGED_BY, "app.kubernetes.io/part-of": "outbox"}


def selector(resource: Resource, role: str) -> dict[str, str]:
    """The labels that identify a child's pods. They never change, because a Deployment's selector
    is immutable."""
    return {
        "app.kubernetes.io/name": CUSTOM_KINDS[resource.kind].app,
        "app.kubernetes.io/instance": fitting(resource.metadata.name, LABEL_CHARACTERS),
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


def service_account_of(resource: Managed) -> str:
    role = CUSTOM_KINDS[resource.kind].role
    return resource.spec.pod.service_account_name or child_name(resource, role)

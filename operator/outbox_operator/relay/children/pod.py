"""
The pods of a relay: what those that relay, reap and retire have in common. What they share with the
pods of replays is in `shared.pod_parts`.

They meet the pod-security level `restricted`, unless the resource requests something else.
"""

from typing import Any

from outbox_operator.relay.spec.resource import OutboxRelay
from outbox_operator.relay.spec.settings import secret_files, token_files
from outbox_operator.settings import OperatorSettings
from outbox_operator.shared.names import OWNER, Manifest, labels, service_account_of
from outbox_operator.shared.pod_parts import (
    container_security,
    environment,
    from_pod,
    from_secrets,
    more_mounts,
    more_volumes,
    placement,
    pod_security,
    secret_mounts,
    secret_volumes,
    store_access,
)

CONFIG_VOLUME = "config"
CONFIG_PATH = "/etc/outbox/config"
CONFIG_FILE = f"{CONFIG_PATH}/relay.yaml"

REQUESTS = {"cpu": "100m", "memory": "128Mi"}
LIMITS = {"memory": "256Mi"}
"""A relay uses about 75 MB at any backlog; a cpu limit would only make it drain more slowly."""


def container(
    relay: OutboxRelay, operator: OperatorSettings, name: str, args: list[str], **more: Any
) -> Manifest:
    pod = relay.spec.pod
    made: Manifest = {
        "name": name,
        "image": pod.image or operator.relay_image,
        "args": args,
        "env": [from_pod("POD_NAME", "metadata.name"), *store_access(relay), *environment(pod)],
        "securityContext": container_security(pod),
        "resources": resources(relay),
        "volumeMounts": [
            {"name": CONFIG_VOLUME, "mountPath": CONFIG_PATH, "readOnly": True},
            *secret_mounts(secret_sources(relay)),
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - the pod's own
            *more_mounts(pod),
        ],
        **more,
    }
    if policy := pod.image_pull_policy or operator.image_pull_policy:
        made["imagePullPolicy"] = policy
    return made


def resources(relay: OutboxRelay) -> Manifest:
    requested = relay.spec.pod.resources
    if not requested.requests and not requested.limits:
        return {"requests": REQUESTS, "limits": LIMITS}
    given: Manifest = requested.model_dump(mode="json", by_alias=True)
    return {kind: values for kind, values in given.items() if values}


def pod_template(
    relay: OutboxRelay,
    operator: OperatorSettings,
    role: str,
    config: str,
    containers: list[Manifest],
    annotations: dict[str, str] | None = None,
    **more: Any,
) -> Manifest:
    """`config` is the name of the ConfigMap that the pods read."""
    pod = relay.spec.pod
    spec: Manifest = {
        "serviceAccountName": service_account_of(relay),
        "automountServiceAccountToken": False,  # nothing in the pod talks to the API server
        "enableServiceLinks": False,
        "securityContext": pod_security(pod, operator),
        "containers": containers,
        "volumes": volumes(relay, config),
        **placement(pod),
        **more,
    }
    return {
        "metadata": {
            "labels": {**pod.labels, **labels(relay, role)},
            "annotations": {
                **pod.annotations,
                **(annotations or {}),
                OWNER: relay.metadata.name,
            },
        },
        "spec": spec,
    }


def volumes(relay: OutboxRelay, config: str) -> list[Manifest]:
    found: list[Manifest] = [
        {"name": CONFIG_VOLUME, "configMap": {"name": config}},
        {"name": "tmp", "emptyDir": {"sizeLimit": "16Mi"}},
    ]
    return [*found, *secret_volumes(secret_sources(relay)), *more_volumes(relay.spec.pod)]


def secret_sources(relay: OutboxRelay) -> list[Manifest]:
    tokens = [
        {
            "serviceAccountToken": {
                "path": file,
                "audience": token.audience,
                "expirationSeconds": int(token.expiration.total_seconds()),
            }
        }
        for file, token in token_files(relay).items()
    ]
    return [*from_secrets(secret_files(relay)), *tokens]

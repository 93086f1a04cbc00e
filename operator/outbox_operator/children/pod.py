"""
The pods of a relay: what those that relay, reap and retire have in common; and what pods of replays
share with them.

Fit for the pod-security level `restricted`, unless the resource asks for something else.
"""

from collections.abc import Mapping
from typing import Any

from outbox_core.contract.values import Settings
from outbox_operator.children.names import OWNER, Manifest, labels, service_account_of
from outbox_operator.resources.objects import SecretKeyRef
from outbox_operator.resources.pods import PodSettings
from outbox_operator.resources.relay import OutboxRelay
from outbox_operator.resources.settings import (
    DSN_ENV,
    SECRETS_PATH,
    STORE_KEY_FILE,
    secret_files,
    store_variables,
)
from outbox_operator.settings import OperatorSettings

USER = 65532
"""Of the images."""
CONFIG_VOLUME = "config"
CONFIG_PATH = "/etc/outbox/config"
CONFIG_FILE = f"{CONFIG_PATH}/relay.yaml"

REQUESTS = {"cpu": "100m", "memory": "128Mi"}
LIMITS = {"memory": "256Mi"}
"""A relay takes some 75 MB at any backlog; a limit of cpu would only slow down its drains."""

RESTRICTED: Manifest = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
RESTRICTED_POD: Manifest = {
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}
FIXED_IDS: Manifest = {"runAsUser": USER, "runAsGroup": USER, "fsGroup": USER}

KEY_MODE = 0o440
"""All that libpq allows of a key that root owns, as it does every file of a mounted Secret; the
pod's fsGroup may read it."""


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
            *secret_mounts(secret_files(relay)),
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - the pod's own
            *more_mounts(pod),
        ],
        **more,
    }
    if policy := pod.image_pull_policy or operator.image_pull_policy:
        made["imagePullPolicy"] = policy
    return made


def from_pod(name: str, path: str) -> Manifest:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def store_access(relay: OutboxRelay) -> list[Manifest]:
    """What a program needs in order to connect to the relay's store."""
    ref = relay.spec.store.postgresql.dsn_secret_ref
    dsn = {
        "name": DSN_ENV,
        "valueFrom": {"secretKeyRef": {"name": ref.name, "key": ref.key}},
    }
    return [dsn, *({"name": n, "value": v} for n, v in store_variables(relay).items())]


def environment(pod: PodSettings) -> list[Manifest]:
    """What the resource adds."""
    return [plain(variable) for variable in pod.env]


def plain(part: Settings) -> Manifest:
    """As it stands in a manifest."""
    return part.model_dump(mode="json", by_alias=True, exclude_none=True)


def resources(relay: OutboxRelay) -> Manifest:
    asked = relay.spec.pod.resources
    if not asked.requests and not asked.limits:
        return {"requests": REQUESTS, "limits": LIMITS}
    given: Manifest = asked.model_dump(mode="json", by_alias=True)
    return {kind: values for kind, values in given.items() if values}


def pod_security(pod: PodSettings, operator: OperatorSettings) -> Manifest:
    if pod.security_context is not None:
        return dict(pod.security_context)
    return RESTRICTED_POD | (FIXED_IDS if operator.fixed_ids else {})


def container_security(pod: PodSettings) -> Manifest:
    given = pod.container_security_context
    return RESTRICTED if given is None else dict(given)


def pod_template(
    relay: OutboxRelay,
    operator: OperatorSettings,
    role: str,
    config: str,
    containers: list[Manifest],
    annotations: dict[str, str] | None = None,
    **more: Any,
) -> Manifest:
    """`config` is the name of the ConfigMap that they read."""
    pod = relay.spec.pod
    spec: Manifest = {
        "serviceAccountName": service_account_of(relay),
        "automountServiceAccountToken": False,  # nothing in it talks to the API server
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


def placement(pod: PodSettings) -> Manifest:
    """Where pods may run, and with whose images."""
    made: Manifest = {}
    if pod.image_pull_secrets:
        made["imagePullSecrets"] = [{"name": s.name} for s in pod.image_pull_secrets]
    if pod.node_selector:
        made["nodeSelector"] = dict(pod.node_selector)
    if pod.tolerations:
        made["tolerations"] = [
            t.model_dump(mode="json", by_alias=True, exclude_none=True) for t in pod.tolerations
        ]
    if pod.affinity:
        made["affinity"] = plain(pod.affinity)
    if pod.priority_class_name:
        made["priorityClassName"] = pod.priority_class_name
    return made


def volumes(relay: OutboxRelay, config: str) -> list[Manifest]:
    found: list[Manifest] = [
        {"name": CONFIG_VOLUME, "configMap": {"name": config}},
        {"name": "tmp", "emptyDir": {"sizeLimit": "16Mi"}},
    ]
    return [*found, *secret_volumes(secret_files(relay)), *more_volumes(relay.spec.pod)]


def secret_volumes(files: Mapping[str, SecretKeyRef]) -> list[Manifest]:
    if not files:
        return []
    sources = [
        {"secret": {"name": ref.name, "items": [secret_item(file, ref)]}}
        for file, ref in files.items()
    ]
    return [{"name": "secrets", "projected": {"sources": sources}}]


def secret_item(file: str, ref: SecretKeyRef) -> Manifest:
    mode = {"mode": KEY_MODE} if file == STORE_KEY_FILE else {}
    return {"key": ref.key, "path": file, **mode}


def secret_mounts(files: Mapping[str, SecretKeyRef]) -> list[Manifest]:
    return [{"name": "secrets", "mountPath": SECRETS_PATH, "readOnly": True}] if files else []


def more_volumes(pod: PodSettings) -> list[Manifest]:
    return [volume.model_dump(mode="json", by_alias=True) for volume in pod.volumes]


def more_mounts(pod: PodSettings) -> list[Manifest]:
    return [plain(mount) for mount in pod.volume_mounts]

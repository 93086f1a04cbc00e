"""
The pods of a relay: what those that relay, reap and retire have in common; and what pods of replays
share with them.

Fit for the pod-security level `restricted`, whatever the resource says.
"""

from typing import Any

from outbox_operator.children.names import OWNER, Manifest, labels, service_account_of
from outbox_operator.resources.pods import PodSettings
from outbox_operator.resources.relay import OutboxRelay
from outbox_operator.resources.settings import DSN_ENV, SECRETS_PATH, secret_files
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
    "runAsUser": USER,
    "runAsGroup": USER,
    "fsGroup": USER,
    "seccompProfile": {"type": "RuntimeDefault"},
}


def container(
    relay: OutboxRelay, operator: OperatorSettings, name: str, args: list[str], **more: Any
) -> Manifest:
    pod = relay.spec.pod
    made: Manifest = {
        "name": name,
        "image": pod.image or operator.relay_image,
        "args": args,
        "env": [from_pod("POD_NAME", "metadata.name"), dsn(relay), *environment(pod)],
        "securityContext": RESTRICTED,
        "resources": resources(relay),
        "volumeMounts": [
            {"name": CONFIG_VOLUME, "mountPath": CONFIG_PATH, "readOnly": True},
            *(
                [{"name": "secrets", "mountPath": SECRETS_PATH, "readOnly": True}]
                if secret_files(relay)
                else []
            ),
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - the pod's own
        ],
        **more,
    }
    if policy := pod.image_pull_policy or operator.image_pull_policy:
        made["imagePullPolicy"] = policy
    return made


def from_pod(name: str, path: str) -> Manifest:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def dsn(relay: OutboxRelay) -> Manifest:
    ref = relay.spec.store.postgresql.dsn_secret_ref
    return {
        "name": DSN_ENV,
        "valueFrom": {"secretKeyRef": {"name": ref.name, "key": ref.key}},
    }


def environment(pod: PodSettings) -> list[Manifest]:
    """What the resource adds."""
    return [e.model_dump(mode="json", by_alias=True, exclude_none=True) for e in pod.env]


def resources(relay: OutboxRelay) -> Manifest:
    asked = relay.spec.pod.resources
    if not asked.requests and not asked.limits:
        return {"requests": REQUESTS, "limits": LIMITS}
    given: Manifest = asked.model_dump(mode="json", by_alias=True)
    return {kind: values for kind, values in given.items() if values}


def pod_template(
    relay: OutboxRelay,
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
        "securityContext": RESTRICTED_POD,
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
        made["affinity"] = dict(pod.affinity)
    if pod.priority_class_name:
        made["priorityClassName"] = pod.priority_class_name
    return made


def volumes(relay: OutboxRelay, config: str) -> list[Manifest]:
    found: list[Manifest] = [
        {"name": CONFIG_VOLUME, "configMap": {"name": config}},
        {"name": "tmp", "emptyDir": {"sizeLimit": "16Mi"}},
    ]
    if files := secret_files(relay):
        sources = [
            {"secret": {"name": ref.name, "items": [{"key": ref.key, "path": file}]}}
            for file, ref in files.items()
        ]
        found.append({"name": "secrets", "projected": {"sources": sources}})
    return found

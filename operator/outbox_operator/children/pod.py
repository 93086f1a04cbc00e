"""
The pods of a relay: what those that relay, reap and retire have in common.

Fit for the pod-security level `restricted`, whatever the resource says.
"""

from typing import Any

from outbox_operator.children.names import OWNER, Manifest, child_name, labels, service_account_of
from outbox_operator.resources.relay import OutboxRelay
from outbox_operator.resources.settings import DSN_ENV, SECRETS_PATH, secret_files
from outbox_operator.settings import OperatorSettings

USER = 65532
"""Of the images."""
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


def container(
    relay: OutboxRelay, operator: OperatorSettings, name: str, args: list[str], **more: Any
) -> Manifest:
    pod = relay.spec.pod
    dsn = relay.spec.store.postgresql.dsn_secret_ref
    made: Manifest = {
        "name": name,
        "image": pod.image or operator.relay_image,
        "args": args,
        "env": [
            {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {
                "name": DSN_ENV,
                "valueFrom": {"secretKeyRef": {"name": dsn.name, "key": dsn.key}},
            },
            *(e.model_dump(mode="json", by_alias=True, exclude_none=True) for e in pod.env),
        ],
        "securityContext": RESTRICTED,
        "resources": resources(relay),
        "volumeMounts": [
            {"name": "config", "mountPath": CONFIG_PATH, "readOnly": True},
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


def resources(relay: OutboxRelay) -> Manifest:
    asked = relay.spec.pod.resources
    if not asked.requests and not asked.limits:
        return {"requests": REQUESTS, "limits": LIMITS}
    given: Manifest = asked.model_dump(mode="json", by_alias=True)
    return {kind: values for kind, values in given.items() if values}


def pod_template(
    relay: OutboxRelay,
    role: str,
    containers: list[Manifest],
    annotations: dict[str, str] | None = None,
    **more: Any,
) -> Manifest:
    pod = relay.spec.pod
    spec: Manifest = {
        "serviceAccountName": service_account_of(relay),
        "automountServiceAccountToken": False,  # nothing in it talks to the API server
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": containers,
        "volumes": volumes(relay),
        **more,
    }
    if pod.image_pull_secrets:
        spec["imagePullSecrets"] = [{"name": s.name} for s in pod.image_pull_secrets]
    if pod.node_selector:
        spec["nodeSelector"] = dict(pod.node_selector)
    if pod.tolerations:
        spec["tolerations"] = [
            t.model_dump(mode="json", by_alias=True, exclude_none=True) for t in pod.tolerations
        ]
    if pod.affinity:
        spec["affinity"] = dict(pod.affinity)
    if pod.priority_class_name:
        spec["priorityClassName"] = pod.priority_class_name
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


def volumes(relay: OutboxRelay) -> list[Manifest]:
    found: list[Manifest] = [
        {"name": "config", "configMap": {"name": child_name(relay, "relay")}},
        {"name": "tmp", "emptyDir": {"sizeLimit": "16Mi"}},
    ]
    if files := secret_files(relay):
        sources = [
            {"secret": {"name": ref.name, "items": [{"key": ref.key, "path": file}]}}
            for file, ref in files.items()
        ]
        found.append({"name": "secrets", "projected": {"sources": sources}})
    return found

"""
Parts that all our pods share, whichever kind they belong to.

Called by the `children` of each kind. They meet the pod-security level `restricted`, unless the
resource requests something else.
"""

from collections.abc import Mapping, Sequence

from outbox_core.contract.settings import HttpPort
from outbox_core.contract.values import Settings
from outbox_operator.settings import OperatorSettings
from outbox_operator.shared.names import Manifest
from outbox_operator.shared.objects import SecretKeyRef
from outbox_operator.shared.pod_settings import PodSettings
from outbox_operator.shared.store import (
    DSN_ENV,
    SECRETS_PATH,
    STORE_KEY_FILE,
    HasStore,
    store_variables,
)

PORT = HttpPort().port
"""The port of metrics, probes and status. relay.yaml does not set it, so it is the contract's
default."""

IMAGE_USER_ID = 65532
"""User and group in our images."""
RESTRICTED: Manifest = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
RESTRICTED_POD: Manifest = {
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}
FIXED_IDS: Manifest = {
    "runAsUser": IMAGE_USER_ID,
    "runAsGroup": IMAGE_USER_ID,
    "fsGroup": IMAGE_USER_ID,
}
KEY_MODE = 0o440
"""The widest mode that libpq accepts for a key that root owns. Root owns every file of a mounted
Secret; the pod's fsGroup may read it."""


def from_pod(name: str, path: str) -> Manifest:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def store_access(relay: HasStore) -> list[Manifest]:
    """The variables that a program needs to connect to the relay's store."""
    ref = relay.spec.store.postgresql.dsn_secret_ref
    dsn = {
        "name": DSN_ENV,
        "valueFrom": {"secretKeyRef": {"name": ref.name, "key": ref.key}},
    }
    return [dsn, *({"name": n, "value": v} for n, v in store_variables(relay).items())]


def environment(pod: PodSettings) -> list[Manifest]:
    """The variables that the resource adds."""
    return [plain(variable) for variable in pod.env]


def plain(part: Settings) -> Manifest:
    """As a manifest holds it."""
    return part.model_dump(mode="json", by_alias=True, exclude_none=True)


def pod_security(pod: PodSettings, operator: OperatorSettings) -> Manifest:
    if pod.security_context is not None:
        return dict(pod.security_context)
    return RESTRICTED_POD | (FIXED_IDS if operator.fixed_ids else {})


def container_security(pod: PodSettings) -> Manifest:
    given = pod.container_security_context
    return RESTRICTED if given is None else dict(given)


def placement(pod: PodSettings) -> Manifest:
    """Where pods may run, and how they pull images."""
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


def from_secrets(files: Mapping[str, SecretKeyRef]) -> list[Manifest]:
    """Sources of the volume of secrets."""
    return [
        {"secret": {"name": ref.name, "items": [secret_item(file, ref)]}}
        for file, ref in files.items()
    ]


def secret_volumes(sources: Sequence[Manifest]) -> list[Manifest]:
    return [{"name": "secrets", "projected": {"sources": list(sources)}}] if sources else []


def secret_item(file: str, ref: SecretKeyRef) -> Manifest:
    mode = {"mode": KEY_MODE} if file == STORE_KEY_FILE else {}
    return {"key": ref.key, "path": file, **mode}


def secret_mounts(sources: Sequence[Manifest]) -> list[Manifest]:
    return [{"name": "secrets", "mountPath": SECRETS_PATH, "readOnly": True}] if sources else []


def more_volumes(pod: PodSettings) -> list[Manifest]:
    return [volume.model_dump(mode="json", by_alias=True) for volume in pod.volumes]


def more_mounts(pod: PodSettings) -> list[Manifest]:
    return [plain(mount) for mount in pod.volume_mounts]

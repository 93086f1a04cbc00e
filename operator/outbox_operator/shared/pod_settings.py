"""
What people may set for pods: image, resources, placement, environment, volumes, security.

Small types of Kubernetes are modelled here, so that a mistake is reported at once. Large ones (the
terms of an affinity, sources of volumes) are passed on unchanged, and the API server checks the
pod.
"""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, model_validator

from outbox_core.contract.values import Settings
from outbox_operator.shared.objects import ObjectName, PlainObject, SecretKeyRef

OUR_ENV = ("OUTBOX_DSN", "POD_NAME")
"""Variables that the operator sets itself."""
OUR_VOLUMES = ("config", "secrets", "tmp")
"""Volumes that the operator adds itself."""
OUR_FOLDERS = ("/etc", "/tmp", "/opt", "/opt/outbox", "/opt/spark", "/opt/java", "/usr")  # noqa: S108
"""Folders of our programs and what they need. A volume there would hide them; below these folders,
except in `OUR_MOUNT_ROOT`, it hides nothing of ours."""
OUR_MOUNT_ROOT = "/etc/outbox"
"""Where the operator mounts settings and secrets."""


class Toleration(Settings):
    key: Annotated[str, Field(max_length=317)] | None = None
    """The taint's key. Default: every taint, with operator Exists."""
    operator: Literal["Exists", "Equal"] = "Equal"
    """Equal: the taint's value must be `value`. Exists: any value."""
    value: Annotated[str, Field(max_length=63)] | None = None
    """The taint's value, with operator Equal."""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    """Default: every effect."""
    toleration_seconds: int | None = None
    """With effect NoExecute: how long a pod stays on the node. Default: forever."""

    @model_validator(mode="after")
    def fits(self) -> "Toleration":
        if self.operator == "Exists" and self.value is not None:
            raise ValueError("operator Exists takes no value: remove it, or use Equal")
        if self.operator == "Equal" and self.key is None:
            raise ValueError("operator Equal needs a key; to tolerate everything use Exists")
        return self


class ConfigMapKeyRef(Settings):
    name: ObjectName
    """The name of the ConfigMap."""
    key: Annotated[str, Field(min_length=1, max_length=253)]
    """The key in that ConfigMap."""


class FieldRef(Settings):
    field_path: Annotated[str, Field(min_length=1, max_length=253)]
    """The path of the field, such as `status.podIP`."""


class EnvSource(Settings):
    secret_key_ref: SecretKeyRef | None = None
    """One key of a Secret."""
    config_map_key_ref: ConfigMapKeyRef | None = None
    """One key of a ConfigMap."""
    field_ref: FieldRef | None = None
    """A field of the pod."""

    @model_validator(mode="after")
    def exactly_one(self) -> "EnvSource":
        if [self.secret_key_ref, self.config_map_key_ref, self.field_ref].count(None) != 2:
            raise ValueError("name exactly one of secretKeyRef, configMapKeyRef and fieldRef")
        return self


class EnvVar(Settings):
    name: Annotated[str, Field(max_length=253, pattern=r"^[-._a-zA-Z][-._a-zA-Z0-9]*$")]
    """The name of the variable."""
    value: Annotated[str, Field(max_length=32768)] | None = None
    """The value. Do not write secrets here: use valueFrom."""
    value_from: EnvSource | None = None
    """Where the value comes from."""

    @model_validator(mode="after")
    def fits(self) -> "EnvVar":
        if self.value is not None and self.value_from is not None:
            raise ValueError("value and valueFrom exclude each other: remove one")
        if self.name in OUR_ENV:
            raise ValueError(f"{self.name} is set by the operator: choose another name")
        return self


class Affinity(Settings):
    node_affinity: PlainObject | None = None
    """Which nodes to run on, as in a pod's spec."""
    pod_affinity: PlainObject | None = None
    """Which pods to run beside."""
    pod_anti_affinity: PlainObject | None = None
    """Which pods to stay apart from."""


class Volume(Settings):
    """Other fields belong to Kubernetes, and are passed on unchanged."""

    model_config = ConfigDict(extra="allow")

    name: Annotated[str, Field(max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]
    """The name that volumeMounts refer to. Add the volume's source beside it, as in a pod's spec:
    `secret`, `configMap`, `csi`, `emptyDir` ..."""

    @model_validator(mode="after")
    def fits(self) -> "Volume":
        if self.name in OUR_VOLUMES:
            raise ValueError(f"{self.name} is a volume of the operator: choose another name")
        return self


class VolumeMount(Settings):
    name: Annotated[str, Field(max_length=63)]
    """The name of one of `volumes`."""
    mount_path: Annotated[
        str,
        Field(
            max_length=500,
            pattern=r"^(/([^/.:][^/:]*|\.[^/.:][^/:]*|\.\.[^/:]+))+$",
        ),
    ]
    """Where its files appear: a folder of your own, such as `/etc/my-ca`."""
    sub_path: Annotated[str, Field(min_length=1, max_length=500)] | None = None
    """Only this file or folder of the volume. It is not updated when the volume changes."""
    read_only: bool = False
    """Whether the pods can only read it."""

    @model_validator(mode="after")
    def fits(self) -> "VolumeMount":
        path = self.mount_path
        if path in (*OUR_FOLDERS, OUR_MOUNT_ROOT) or path.startswith(f"{OUR_MOUNT_ROOT}/"):
            raise ValueError("mountPath would hide the operator's files: choose another folder")
        return self


class PullSecret(Settings):
    name: ObjectName
    """A Secret with a registry's credentials, in the resource's own namespace."""


ACCOUNT_ANNOTATED_BY_ITS_OWNER = (
    "serviceAccountName and serviceAccountAnnotations exclude each other: annotate the account "
    "that you name yourself, or leave out its name"
)
UNKNOWN_VOLUME = "volumeMounts: each must name one of volumes; add the volume, or correct the name"


class PodSettings(Settings):
    """What the pods of relays and replays have in common."""

    image: Annotated[str, Field(min_length=1, max_length=500)] | None = None
    """Default: the image that came with the operator."""
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = None
    """Default: Kubernetes chooses it by the image's tag."""
    image_pull_secrets: Annotated[tuple[PullSecret, ...], Field(max_length=20)] = ()
    """Used in addition to those of the service account."""
    node_selector: Annotated[Mapping[str, str], Field(max_length=50)] = Field(default_factory=dict)
    """Only nodes with these labels."""
    tolerations: Annotated[tuple[Toleration, ...], Field(max_length=50)] = ()
    """Taints of nodes on which the pods may run anyway."""
    affinity: Affinity | None = None
    """As in a pod's spec."""
    env: Annotated[tuple[EnvVar, ...], Field(max_length=100)] = ()
    """More environment variables, such as those for a proxy."""
    labels: Annotated[Mapping[str, str], Field(max_length=50)] = Field(default_factory=dict)
    """More labels for the pods. Labels that the operator sets win."""
    annotations: Annotated[Mapping[str, str], Field(max_length=50)] = Field(default_factory=dict)
    """More annotations for the pods."""
    service_account_name: ObjectName | None = None
    """A service account of your own, such as one that a cloud's database accepts. Default: the
    operator creates one that has no rights in the cluster."""
    service_account_annotations: Annotated[Mapping[str, str], Field(max_length=50)] = Field(
        default_factory=dict
    )
    """Annotations for the service account that the operator creates, by which a cloud gives the
    pods an identity, such as `eks.amazonaws.com/role-arn`. Annotations that the operator sets
    win."""
    priority_class_name: ObjectName | None = None
    """The priority class, which decides which pods are evicted first when a node is full."""
    volumes: Annotated[tuple[Volume, ...], Field(max_length=20)] = ()
    """More volumes, as in a pod's spec."""
    volume_mounts: Annotated[tuple[VolumeMount, ...], Field(max_length=20)] = ()
    """Where these volumes are mounted, in all containers."""
    security_context: PlainObject | None = None
    """The pods' security context. It replaces the operator's completely; `{}`: none. Default: not
    root, with the images' user and group 65532 unless the operator leaves those out, and seccomp
    RuntimeDefault."""
    container_security_context: PlainObject | None = None
    """The security context of all containers. It replaces the operator's completely; `{}`: none.
    Default: no privileges, no capabilities, a read-only root file system."""

    @model_validator(mode="after")
    def names_are_unique(self) -> "PodSettings":
        variables = [variable.name for variable in self.env]
        secrets = [secret.name for secret in self.image_pull_secrets]
        if len(variables) > len(set(variables)):
            raise ValueError("env: two variables have the same name, rename or remove one")
        if len(secrets) > len(set(secrets)):
            raise ValueError("imagePullSecrets: two entries have the same name, remove one")
        return self

    @model_validator(mode="after")
    def one_annotates_the_account(self) -> "PodSettings":
        if self.service_account_name is not None and self.service_account_annotations:
            raise ValueError(ACCOUNT_ANNOTATED_BY_ITS_OWNER)
        return self

    @model_validator(mode="after")
    def volumes_fit(self) -> "PodSettings":
        names = [volume.name for volume in self.volumes]
        paths = [mount.mount_path for mount in self.volume_mounts]
        if len(names) > len(set(names)):
            raise ValueError("volumes: two volumes have the same name, rename one")
        if len(paths) > len(set(paths)):
            raise ValueError("volumeMounts: two mounts have the same mountPath, change one")
        if not {mount.name for mount in self.volume_mounts} <= set(names):
            raise ValueError(UNKNOWN_VOLUME)
        return self

"""
The models' rules in CEL, the API server's language: each repeats a validator.

This module has the rules of models that several kinds use; those of one kind are in its
`spec.rules`, and `definitions.schema` reads them all. A model without an entry has no validator; a
test compares. One corpus, which both the API server and the models judge, tests that they agree.
"""

from collections.abc import Collection, Mapping
from typing import NamedTuple

from pydantic import BaseModel

from outbox_operator.shared.pod_settings import (
    ACCOUNT_ANNOTATED_BY_ITS_OWNER,
    OUR_ENV,
    OUR_FOLDERS,
    OUR_MOUNT_ROOT,
    OUR_VOLUMES,
    UNKNOWN_VOLUME,
    EnvSource,
    EnvVar,
    PodSettings,
    Toleration,
    Volume,
    VolumeMount,
)
from outbox_operator.shared.store import StoreTls


class Rule(NamedTuple):
    cel: str
    message: str
    """What to change."""


def length(text: str) -> str:
    """CEL that turns our durations into its own. CEL has no days, but can subtract times; building
    a text with hours instead would exceed the API server's cost limit for a rule."""
    days = f"int({text}.replace('d', ''))"
    return f"({text}.endsWith('d') ? timestamp({days} * 86400) - timestamp(0) : duration({text}))"


def unchanged(name: str, always_there: bool) -> str:
    """CEL: the field keeps its value; an optional field that is missing stays missing."""
    same = f"self.{name} == oldSelf.{name}"
    if always_there:
        return same
    return f"has(self.{name}) == has(oldSelf.{name}) && (!has(self.{name}) || {same})"


Rules = Mapping[type[BaseModel], tuple[Rule, ...]]
Immutable = Mapping[type[BaseModel], tuple[Collection[str], str]]
"""Fields that cannot change after creation, and the message that explains it."""

OF_PODS = (
    Rule(
        "!has(self.serviceAccountName) || !has(self.serviceAccountAnnotations) || "
        "size(self.serviceAccountAnnotations) == 0",
        ACCOUNT_ANNOTATED_BY_ITS_OWNER,
    ),
    Rule(
        "!has(self.volumeMounts) || self.volumeMounts.all(mount, has(self.volumes) && "
        "self.volumes.exists(volume, volume.name == mount.name))",
        UNKNOWN_VOLUME,
    ),
)
"""Of every model of pods. Uniqueness follows from the lists' keys, see `definitions.schema`."""

RULES: Rules = {
    StoreTls: (
        Rule(
            "has(self.certSecretRef) == has(self.keySecretRef)",
            "certSecretRef and keySecretRef go together: add the other one",
        ),
        Rule(
            "self.mode != 'verify-ca' || has(self.caSecretRef)",
            "verify-ca needs caSecretRef, otherwise any public certificate would be accepted: add "
            "it, or use verify-full",
        ),
    ),
    Toleration: (
        Rule(
            "self.operator != 'Exists' || !has(self.value)",
            "operator Exists takes no value: remove it, or use Equal",
        ),
        Rule(
            "self.operator != 'Equal' || has(self.key)",
            "operator Equal needs a key; to tolerate everything use Exists",
        ),
    ),
    EnvSource: (
        Rule(
            "[has(self.secretKeyRef), has(self.configMapKeyRef), has(self.fieldRef)]"
            ".exists_one(given, given)",
            "name exactly one of secretKeyRef, configMapKeyRef and fieldRef",
        ),
    ),
    EnvVar: (
        Rule(
            "!has(self.value) || !has(self.valueFrom)",
            "value and valueFrom exclude each other: remove one",
        ),
        Rule(
            f"!(self.name in {list(OUR_ENV)})",
            f"{' and '.join(OUR_ENV)} are set by the operator: choose another name",
        ),
    ),
    Volume: (
        Rule(
            f"!(self.name in {list(OUR_VOLUMES)})",
            f"{', '.join(OUR_VOLUMES)} are volumes of the operator: choose another name",
        ),
    ),
    VolumeMount: (
        Rule(
            f"!(self.mountPath in {[*OUR_FOLDERS, OUR_MOUNT_ROOT]}) && "
            f"!self.mountPath.startsWith('{OUR_MOUNT_ROOT}/')",
            "mountPath would hide the operator's files: choose another folder",
        ),
    ),
    PodSettings: OF_PODS,
}

"""
The models' rules in CEL, the API server's language: each is a validator's twin.

Here are the rules of models that several kinds use; those of one kind are in its `spec.rules`, and
`definitions.schema` reads them all. A model without an entry has no validator; a test compares.
That both judge alike is tested by one corpus, which the API server and the models judge.
"""

from collections.abc import Collection, Mapping
from typing import NamedTuple

from pydantic import BaseModel

from outbox_operator.shared.pod_settings import (
    OUR_ENV,
    OUR_FOLDERS,
    OUR_PLACE,
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
    """A duration in CEL, of one as we write it. CEL knows no days, but subtracts times; to build
    a text with hours instead would exceed what the API server lets a rule cost."""
    days = f"int({text}.replace('d', ''))"
    return f"({text}.endsWith('d') ? timestamp({days} * 86400) - timestamp(0) : duration({text}))"


def unchanged(name: str, always_there: bool) -> str:
    """A field keeps its value; one that may be missing stays missing."""
    same = f"self.{name} == oldSelf.{name}"
    if always_there:
        return same
    return f"has(self.{name}) == has(oldSelf.{name}) && (!has(self.{name}) || {same})"


Rules = Mapping[type[BaseModel], tuple[Rule, ...]]
ForGood = Mapping[type[BaseModel], tuple[Collection[str], str]]
"""Fields that keep what they were created with, and the message about it."""

VOLUMES_FIT = (
    Rule(
        "!has(self.volumeMounts) || self.volumeMounts.all(mount, has(self.volumes) && "
        "self.volumes.exists(volume, volume.name == mount.name))",
        UNKNOWN_VOLUME,
    ),
)
"""That no two are alike is a matter of the lists' keys, see `definitions.schema`."""

RULES: Rules = {
    StoreTls: (
        Rule(
            "has(self.certSecretRef) == has(self.keySecretRef)",
            "certSecretRef and keySecretRef go together: add the other one",
        ),
        Rule(
            "self.mode != 'verify-ca' || has(self.caSecretRef)",
            "verify-ca needs caSecretRef, or any public certificate would do: add it, or use "
            "verify-full",
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
            f"!(self.mountPath in {[*OUR_FOLDERS, OUR_PLACE]}) && "
            f"!self.mountPath.startsWith('{OUR_PLACE}/')",
            "mountPath would hide files of the operator's: choose another folder",
        ),
    ),
    PodSettings: VOLUMES_FIT,
}

"""
The models' rules in CEL, the API server's language: each is a validator's twin.

Read by `schema`. A model without an entry here has no validator; a test looks. That both judge
alike is tested by one corpus, which the API server and the models judge.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from pydantic import BaseModel

from outbox_core.contract.librdkafka import BY_KEY, REFUSED
from outbox_core.contract.selection import Range, Selection
from outbox_core.contract.settings import Polling, RetryPolicy
from outbox_operator.resources.autoscaling import Autoscaling
from outbox_operator.resources.pods import (
    OUR_ENV,
    OUR_FOLDERS,
    OUR_PLACE,
    OUR_VOLUMES,
    UNKNOWN_VOLUME,
    EnvSource,
    EnvVar,
    PodSettings,
    RelayPod,
    Toleration,
    Volume,
    VolumeMount,
)
from outbox_operator.resources.publisher import ONE_OF, Kafka, KafkaTls, Publisher
from outbox_operator.resources.relay import (
    LONGEST_OBJECT_NAME,
    TLS_ENV,
    TLS_SAID_TWICE,
    OutboxRelay,
    RelaySpec,
    StoreTls,
)
from outbox_operator.resources.replay import POD_KEYS, POD_KEYS_TOLD, ReplaySpec


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


FOR_GOOD: Mapping[type[BaseModel], tuple[Collection[str], str]] = {
    RelaySpec: (
        {"relay_name"},
        "relayName cannot be changed, or the events that wait under the old one would stay behind: "
        "create another OutboxRelay",
    ),
    ReplaySpec: (
        set(ReplaySpec.model_fields) - {"suspend"},
        "only suspend can be changed: for another request create another OutboxReplay",
    ),
}
"""Fields that keep what they were created with, and what is said about it."""

KAFKA_TIMEOUT = length("self.publisher.kafka.deliveryTimeout")
OTHERS = [
    field.alias
    for name, field in Selection.model_fields.items()
    if field.alias and name != "states"
]


def config_rules() -> Iterator[Rule]:
    """A rule for each reason, so that the message can give it."""
    for reason in dict.fromkeys(REFUSED.values()):
        names = [name for name, why in REFUSED.items() if why == reason]
        yield Rule(
            f"!has(self.config) || {names}.all(name, !(name in self.config))",
            f"config: {' and '.join(names)} cannot be set: {reason}",
        )
    yield Rule(
        "!has(self.config) || !('partitioner' in self.config) || "
        f"self.config['partitioner'] in {list(BY_KEY)}",
        f"config: partitioner must keep a key in its partition: {ONE_OF}",
    )


VOLUMES_FIT = (
    Rule(
        "!has(self.volumeMounts) || self.volumeMounts.all(mount, has(self.volumes) && "
        "self.volumes.exists(volume, volume.name == mount.name))",
        UNKNOWN_VOLUME,
    ),
)
"""That no two are alike is said by the lists' keys, see `schema`."""

RULES: Mapping[type[BaseModel], tuple[Rule, ...]] = {
    OutboxRelay: (
        Rule(
            f"has(self.spec.relayName) || size(self.metadata.name) <= {LONGEST_OBJECT_NAME}",
            f"metadata.name is longer than {LONGEST_OBJECT_NAME} characters: shorten it, or set "
            "spec.relayName",
        ),
    ),
    RelaySpec: (
        Rule(
            f"!has(self.publisher.kafka) || {length('self.lease')} > {KAFKA_TIMEOUT}",
            "lease must be longer than the publisher's deliveryTimeout: raise the one or lower "
            "the other",
        ),
        Rule(
            "!has(self.publisher.kafka) || !has(self.drainTimeout) || "
            f"{length('self.drainTimeout')} >= {KAFKA_TIMEOUT}",
            "drainTimeout must not be shorter than the publisher's deliveryTimeout, or what is in "
            "flight at the stop is sent twice",
        ),
        Rule(
            "!has(self.autoscaling) || self.replicas == 1",
            "replicas and autoscaling exclude each other: leave out replicas (or set it to 1)",
        ),
        Rule(
            "!has(self.store.postgresql.tls) || !has(self.pod.env) || "
            f"self.pod.env.all(variable, !(variable.name in {list(TLS_ENV)}))",
            TLS_SAID_TWICE,
        ),
    ),
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
    Publisher: (Rule("has(self.kafka)", "name exactly one publisher: kafka"),),
    Kafka: tuple(config_rules()),
    KafkaTls: (
        Rule(
            "has(self.certSecretRef) == has(self.keySecretRef)",
            "certSecretRef and keySecretRef go together: add the other one",
        ),
        Rule(
            "!has(self.keyPasswordSecretRef) || has(self.keySecretRef)",
            "keyPasswordSecretRef needs keySecretRef: add it",
        ),
    ),
    RetryPolicy: (
        Rule(
            f"{length('self.baseDelay')} <= {length('self.maxDelay')}",
            "baseDelay must not be longer than maxDelay",
        ),
    ),
    Polling: (
        Rule(
            f"{length('self.shortest')} <= {length('self.longest')}",
            "shortest must not be longer than longest",
        ),
    ),
    Autoscaling: (
        Rule("self.minReplicas <= self.maxReplicas", "minReplicas must not be above maxReplicas"),
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
    RelayPod: VOLUMES_FIT,
    Range: (
        Rule("has(self.after) || has(self.before)", "name at least one of after and before"),
        Rule(
            "!has(self.after) || !has(self.before) || self.after < self.before",
            "after must be earlier than before: nothing lies between",
        ),
    ),
    Selection: (
        Rule(
            "!has(self.published) || (has(self.states) && 'PUBLISHED' in self.states)",
            "published needs states: [PUBLISHED]: nothing else was published",
        ),
        Rule(
            "!has(self.states) || !('PUBLISHED' in self.states) || "
            + " || ".join(f"has(self.{other})" for other in OTHERS),
            "PUBLISHED alone is everything that ever went out: narrow it, for example by created "
            'or eventTypes; eventTypes: ["*"] if you mean everything',
        ),
    ),
    ReplaySpec: (
        Rule(
            "self.action != 'Backfill' || (!has(self.select.states) && "
            "!has(self.select.published) && !has(self.select.errorMatches))",
            "Backfill takes events that the relay never had, so they have no state: remove "
            "select.states, select.published and select.errorMatches",
        ),
        Rule(
            f"!has(self.sparkConf) || self.sparkConf.all(key, !key.matches(r'{POD_KEYS}'))",
            POD_KEYS_TOLD,
        ),
    ),
}

"""The rules of OutboxRelay in CEL: see `shared.rules`."""

from collections.abc import Iterator

from outbox_core.contract.librdkafka import BY_KEY, REFUSED
from outbox_core.contract.settings import Polling, RetryPolicy
from outbox_operator.relay.spec.autoscaling import Autoscaling
from outbox_operator.relay.spec.pod import RelayPod
from outbox_operator.relay.spec.publisher import ONE_OF, Kafka, KafkaTls, Publisher
from outbox_operator.relay.spec.resource import LONGEST_OBJECT_NAME, OutboxRelay, RelaySpec
from outbox_operator.shared.rules import VOLUMES_FIT, Immutable, Rule, Rules, length
from outbox_operator.shared.store import TLS_ENV, TLS_SET_TWICE

IMMUTABLE: Immutable = {
    RelaySpec: (
        {"relay_name"},
        "relayName cannot be changed, because events that wait under the old name would be left "
        "behind: create another OutboxRelay",
    ),
}

KAFKA_TIMEOUT = length("self.publisher.kafka.deliveryTimeout")


def config_rules() -> Iterator[Rule]:
    """One rule per reason, so that its message can give the reason."""
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


RULES: Rules = {
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
            TLS_SET_TWICE,
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
    RelayPod: VOLUMES_FIT,
}

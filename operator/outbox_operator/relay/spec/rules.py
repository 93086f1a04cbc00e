"""The rules of OutboxRelay in CEL: see `shared.rules`."""

from outbox_core.contract.settings import Polling, RetryPolicy
from outbox_operator.relay.spec.autoscaling import Autoscaling
from outbox_operator.relay.spec.pod import RelayPod
from outbox_operator.relay.spec.publishers import union as publishers
from outbox_operator.relay.spec.resource import LONGEST_OBJECT_NAME, OutboxRelay, RelaySpec
from outbox_operator.shared.rules import OF_PODS, Immutable, Rule, Rules, length
from outbox_operator.shared.store import TLS_ENV, TLS_SET_TWICE

IMMUTABLE: Immutable = {
    RelaySpec: (
        {"relay_name"},
        "relayName cannot be changed, because events that wait under the old name would be left "
        "behind: create another OutboxRelay",
    ),
}

RULES: Rules = {
    OutboxRelay: (
        Rule(
            f"has(self.spec.relayName) || size(self.metadata.name) <= {LONGEST_OBJECT_NAME}",
            f"metadata.name is longer than {LONGEST_OBJECT_NAME} characters: shorten it, or set "
            "spec.relayName",
        ),
    ),
    RelaySpec: (
        *publishers.rules_of_behaviour(),
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
    **publishers.RULES,
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
    RelayPod: OF_PODS,
}

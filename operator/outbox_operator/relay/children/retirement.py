"""The Job that retires a relay in the database, for `deletionPolicy: Delete`."""

from outbox_operator.relay.children.pod import CONFIG_FILE, container, pod_template
from outbox_operator.relay.spec.resource import OutboxRelay
from outbox_operator.settings import OperatorSettings
from outbox_operator.shared.names import Manifest, owned

RETIRE_REASON = "the OutboxRelay was deleted with deletionPolicy: Delete"
RETIRE_ACTOR = "outbox-operator"


def build_retirement(relay: OutboxRelay, operator: OperatorSettings, config: str) -> Manifest:
    args = ["retire", "--config", CONFIG_FILE, "--reason", RETIRE_REASON, "--actor", RETIRE_ACTOR]
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": owned(relay, "retire"),
        "spec": {
            "backoffLimit": 6,
            "template": pod_template(
                relay,
                operator,
                "retire",
                config,
                [container(relay, operator, "retire", args)],
                restartPolicy="Never",
            ),
        },
    }

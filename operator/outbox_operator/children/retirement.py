"""The Job that makes the database forget a relay, for `deletionPolicy: Delete`."""

from outbox_operator.children.names import Manifest, owned
from outbox_operator.children.pod import CONFIG_FILE, container, pod_template
from outbox_operator.resources.relay import OutboxRelay
from outbox_operator.settings import OperatorSettings

REASON = "the OutboxRelay was deleted with deletionPolicy: Delete"

ACTOR = "outbox-operator"


def build_retirement(relay: OutboxRelay, operator: OperatorSettings, config: str) -> Manifest:
    args = ["retire", "--config", CONFIG_FILE, "--reason", REASON, "--actor", ACTOR]
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

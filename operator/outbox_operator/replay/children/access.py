"""ServiceAccount and RoleBinding of a replay: its pods' identity, and the right of its driver to
create executors."""

from outbox_operator.replay.spec.resource import OutboxReplay
from outbox_operator.settings import OperatorSettings
from outbox_operator.shared.accounts import build_account
from outbox_operator.shared.names import Manifest, owned, service_account_of

RBAC = "rbac.authorization.k8s.io"


def build_replay_account(replay: OutboxReplay) -> Manifest:
    """The driver's pod requests its token, executors do not."""
    return build_account(replay, replay.spec.pod)


def build_role_binding(replay: OutboxReplay, operator: OperatorSettings) -> Manifest:
    """For an account that the replay names too: a person who may create replays may run pods in
    this namespace anyway."""
    return {
        "apiVersion": f"{RBAC}/v1",
        "kind": "RoleBinding",
        "metadata": owned(replay, "replay"),
        "roleRef": {
            "apiGroup": RBAC,
            "kind": "Role" if operator.namespaces else "ClusterRole",
            "name": operator.driver_role,
        },
        "subjects": [
            {
                "kind": "ServiceAccount",
                "name": service_account_of(replay),
                "namespace": replay.metadata.namespace,
            }
        ],
    }

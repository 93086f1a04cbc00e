"""
The pods of a replay: the templates of driver and executors, for either engine.

Kubernetes or Spark creates pods from them, and adds image, size and arguments. Everything else is
in the templates, so that no mutating webhook has to add it. They meet the pod-security level
`restricted`, unless the resource requests something else.
"""

from outbox_operator.replay.spec.resource import OutboxReplay
from outbox_operator.replay.spec.target import TargetRelay
from outbox_operator.settings import OperatorSettings
from outbox_operator.shared.names import OWNER, Manifest, child_name, labels, service_account_of
from outbox_operator.shared.pod_parts import (
    container_security,
    environment,
    from_pod,
    from_secrets,
    more_mounts,
    more_volumes,
    placement,
    pod_security,
    secret_mounts,
    secret_volumes,
    store_access,
)
from outbox_operator.shared.store import store_files

DRIVER_CONTAINER = "spark-kubernetes-driver"
EXECUTOR_CONTAINER = "spark-kubernetes-executor"
"""Names of containers by which Spark finds them in a template."""

ATTEMPT = "outbox.dev/attempt"
UID = "outbox.dev/uid"
"""Labels of pods: the attempt, and the resource's uid. The uid, because a deleted resource of the
same name may have left pods behind."""

CONFIG_PATH = "/etc/outbox/replay"
CONFIG_FILE = f"{CONFIG_PATH}/replay.json"
EXECUTOR_FILE = f"{CONFIG_PATH}/executor.yaml"


def driver_template(
    replay: OutboxReplay, relay: TargetRelay, operator: OperatorSettings, attempt: int
) -> Manifest:
    ours = [
        from_pod("POD_NAME", "metadata.name"),
        from_pod("POD_IP", "status.podIP"),
        *store_access(relay),
    ]
    container = _container(replay, relay, DRIVER_CONTAINER, ours)
    container["volumeMounts"].insert(
        0, {"name": "config", "mountPath": CONFIG_PATH, "readOnly": True}
    )
    template = _template(replay, relay, operator, "driver", container, attempt)
    # The driver creates executors; otherwise nothing in the pod talks to the API server.
    template["spec"]["automountServiceAccountToken"] = replay.has_executors
    template["spec"]["volumes"].insert(
        0, {"name": "config", "configMap": {"name": child_name(replay, "replay")}}
    )
    return template


def executor_template(
    replay: OutboxReplay,
    relay: TargetRelay,
    operator: OperatorSettings,
    attempt: int | None = None,
) -> Manifest:
    """Without an `attempt`: for the file that serves all attempts, where it is part of a Pod."""
    ours = [from_pod("POD_NAME", "metadata.name"), *store_access(relay)]
    container = _container(replay, relay, EXECUTOR_CONTAINER, ours)
    template = _template(replay, relay, operator, "executor", container, attempt)
    template["spec"]["automountServiceAccountToken"] = False
    return template


def _container(
    replay: OutboxReplay, relay: TargetRelay, name: str, ours: list[Manifest]
) -> Manifest:
    pod = replay.spec.pod
    # The replay's spec cannot know which variables the relay's store needs.
    names = {variable["name"] for variable in ours}
    return {
        "name": name,
        "env": [*(v for v in environment(pod) if v["name"] not in names), *ours],
        "securityContext": container_security(pod),
        "volumeMounts": [
            *secret_mounts(from_secrets(store_files(relay))),
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - the pod's own
            *more_mounts(pod),
        ],
    }


def _template(
    replay: OutboxReplay,
    relay: TargetRelay,
    operator: OperatorSettings,
    role: str,
    container: Manifest,
    attempt: int | None,
) -> Manifest:
    pod = replay.spec.pod
    ours = {**labels(replay, role), UID: replay.metadata.uid}
    if attempt is not None:
        ours[ATTEMPT] = str(attempt)
    return {
        "metadata": {
            "labels": {**pod.labels, **ours},
            "annotations": {**pod.annotations, OWNER: replay.metadata.name},
        },
        "spec": {
            "serviceAccountName": service_account_of(replay),
            "enableServiceLinks": False,
            "securityContext": pod_security(pod, operator),
            "containers": [container],
            "volumes": [
                {"name": "tmp", "emptyDir": {"sizeLimit": "1Gi"}},
                *secret_volumes(from_secrets(store_files(relay))),
                *more_volumes(pod),
            ],
            **placement(pod),
        },
    }

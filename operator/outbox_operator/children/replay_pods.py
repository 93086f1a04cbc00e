"""
The pods of a replay: the driver's and the executors' templates, whichever engine uses them.

Whoever makes pods of them, Kubernetes or Spark, adds what only it knows: image, size and arguments.
All else is here and in nothing that a mutating webhook would have to read. Fit for the pod-security
level `restricted`.
"""

from outbox_operator.children.names import OWNER, Manifest, child_name, labels, service_account_of
from outbox_operator.children.pod import (
    RESTRICTED,
    RESTRICTED_POD,
    dsn,
    environment,
    from_pod,
    placement,
)
from outbox_operator.resources.relay import OutboxRelay
from outbox_operator.resources.replay import OutboxReplay

DRIVER = "spark-kubernetes-driver"
EXECUTOR = "spark-kubernetes-executor"
"""Containers: Spark finds those by these names in a template."""

ATTEMPT = "outbox.dev/attempt"
UID = "outbox.dev/uid"
"""Labels of pods: which attempt of which resource. The uid, because a resource that was deleted may
have left pods behind under the same name."""

CONFIG_PATH = "/etc/outbox/replay"
CONFIG_FILE = f"{CONFIG_PATH}/replay.json"
EXECUTOR_FILE = f"{CONFIG_PATH}/executor.yaml"


def driver_template(replay: OutboxReplay, relay: OutboxRelay, attempt: int) -> Manifest:
    container: Manifest = {
        "name": DRIVER,
        "env": [
            *environment(replay.spec.pod),
            from_pod("POD_NAME", "metadata.name"),
            from_pod("POD_IP", "status.podIP"),
            dsn(relay),
        ],
        "securityContext": RESTRICTED,
        "volumeMounts": [
            {"name": "config", "mountPath": CONFIG_PATH, "readOnly": True},
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - the pod's own
        ],
    }
    template = _template(replay, "driver", container, attempt)
    template["spec"] |= {
        # It asks for executors; else nothing in it talks to the API server.
        "automountServiceAccountToken": replay.has_executors,
        "volumes": [
            {"name": "config", "configMap": {"name": child_name(replay, "replay")}},
            {"name": "tmp", "emptyDir": {"sizeLimit": "1Gi"}},
        ],
    }
    return template


def executor_template(
    replay: OutboxReplay, relay: OutboxRelay, attempt: int | None = None
) -> Manifest:
    """In a file it serves all attempts, and is a whole Pod to those who read it."""
    container: Manifest = {
        "name": EXECUTOR,
        "env": [
            *environment(replay.spec.pod),
            from_pod("POD_NAME", "metadata.name"),
            dsn(relay),
        ],
        "securityContext": RESTRICTED,
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],  # noqa: S108
    }
    template = _template(replay, "executor", container, attempt)
    template["spec"] |= {
        "automountServiceAccountToken": False,
        "volumes": [{"name": "tmp", "emptyDir": {"sizeLimit": "1Gi"}}],
    }
    return template


def _template(
    replay: OutboxReplay, role: str, container: Manifest, attempt: int | None
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
            "securityContext": RESTRICTED_POD,
            "containers": [container],
            **placement(pod),
        },
    }

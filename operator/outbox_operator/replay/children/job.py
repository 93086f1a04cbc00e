"""
The Job: one attempt at a replay without a Spark operator.

Its pod is Spark's driver. It gets executors from Spark's own Kubernetes scheduler, or does all the
work itself. Created once and never changed: the next attempt is another Job.
"""

from outbox_operator.replay.children.names import attempt_name
from outbox_operator.replay.children.pod import ATTEMPT, driver_template
from outbox_operator.replay.children.spark_conf import (
    MAIN_FILE,
    PROGRAM,
    client_conf,
    cpu,
    image,
    local_conf,
    pull_policy,
    with_overhead,
)
from outbox_operator.replay.spec.resource import OutboxReplay
from outbox_operator.replay.spec.target import TargetRelay
from outbox_operator.settings import OperatorSettings
from outbox_operator.shared.names import Manifest, owned
from outbox_operator.shared.pod_parts import PORT

API_SERVER = "k8s://https://kubernetes.default.svc"

DRY_RUN_RESOURCES = {
    "requests": {"cpu": "100m", "memory": "192Mi"},
    "limits": {"memory": "512Mi"},
}
"""A dry run is a few queries: Spark is not started."""


def build_job(
    replay: OutboxReplay, relay: TargetRelay, operator: OperatorSettings, attempt: int
) -> Manifest:
    template = driver_template(replay, relay, operator, attempt)
    template["spec"]["restartPolicy"] = "Never"
    (container,) = template["spec"]["containers"]
    container |= {
        "image": image(replay, operator),
        "args": arguments(replay, operator, attempt),
        "resources": resources(replay),
        "ports": [{"name": "http", "containerPort": PORT, "protocol": "TCP"}],
    }
    container["env"].append({"name": "SPARK_DRIVER_BIND_ADDRESS", "value": "$(POD_IP)"})
    if policy := pull_policy(replay, operator):
        container["imagePullPolicy"] = policy
    metadata = owned(replay, "driver", attempt_name(replay, attempt))
    metadata["labels"][ATTEMPT] = str(attempt)
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata,
        "spec": {
            "backoffLimit": 0,  # the operator decides whether there is another attempt
            "template": template,
        },
    }


def arguments(replay: OutboxReplay, operator: OperatorSettings, attempt: int) -> list[str]:
    """For the image's entrypoint, where `driver` means spark-submit."""
    if replay.spec.dry_run:
        return ["python", MAIN_FILE, *PROGRAM]
    if replay.has_executors:
        master, conf = API_SERVER, client_conf(replay, operator, attempt)
    else:
        master, conf = f"local[{replay.spec.driver.cores}]", local_conf(replay)
    name = attempt_name(replay, attempt)
    words = [word for key, value in conf.items() for word in ("--conf", f"{key}={value}")]
    return ["driver", "--master", master, "--name", name, *words, f"local://{MAIN_FILE}", *PROGRAM]


def resources(replay: OutboxReplay) -> Manifest:
    if replay.spec.dry_run:
        return DRY_RUN_RESOURCES
    needed = with_overhead(replay.spec.driver)
    return {
        "requests": {"cpu": cpu(replay.spec.driver), "memory": needed},
        "limits": {"memory": needed},
    }

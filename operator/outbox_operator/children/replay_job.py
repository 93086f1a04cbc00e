"""
The Job: one attempt at a replay without a Spark operator.

Its pod is Spark's driver, and asks Spark's own Kubernetes scheduler for executors, or does it all
itself. Made once and never changed: the next attempt is another Job.
"""

from outbox_operator.children.names import Manifest, attempt_name, owned
from outbox_operator.children.replay_pods import ATTEMPT, driver_template
from outbox_operator.children.spark_conf import (
    MAIN_FILE,
    PROGRAM,
    client_conf,
    cpu,
    image,
    local_conf,
    pull_policy,
    with_overhead,
)
from outbox_operator.resources.relay import OutboxRelay
from outbox_operator.resources.replay import OutboxReplay
from outbox_operator.resources.settings import PORT
from outbox_operator.settings import OperatorSettings

API_SERVER = "k8s://https://kubernetes.default.svc"

A_LOOK = {
    "requests": {"cpu": "100m", "memory": "192Mi"},
    "limits": {"memory": "512Mi"},
}
"""A dry run is a few questions to the database: no Spark is started."""


def build_job(
    replay: OutboxReplay, relay: OutboxRelay, operator: OperatorSettings, attempt: int
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
            "backoffLimit": 0,  # the operator decides about another attempt
            "template": template,
        },
    }


def arguments(replay: OutboxReplay, operator: OperatorSettings, attempt: int) -> list[str]:
    """Of the image's entrypoint, for which `driver` is spark-submit."""
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
        return A_LOOK
    needed = with_overhead(replay.spec.driver)
    return {
        "requests": {"cpu": cpu(replay.spec.driver), "memory": needed},
        "limits": {"memory": needed},
    }

"""
Spark's settings for a replay: the same for both engines, and with as few rights as possible.

A resource's `sparkConf` comes first, so that the settings here win.
"""

import re

from outbox_operator.replay.children.names import attempt_name
from outbox_operator.replay.children.pod import CONFIG_FILE, EXECUTOR_FILE
from outbox_operator.replay.spec.resource import OutboxReplay, SparkPod
from outbox_operator.settings import OperatorSettings
from outbox_operator.shared.objects import Quantity

SPARK_VERSION = "4.0.0"
"""The oldest version that the image may contain; a SparkApplication must name one."""
MAIN_FILE = "/opt/spark/replay.py"
"""The program in the image."""
PROGRAM = ["--config", CONFIG_FILE]
"""The program's arguments."""

OVERHEAD_SHARE = 0.4
LEAST_OVERHEAD_MEBIBYTES = 384
"""The memory that Spark adds for programs in Python: a share of its own memory, and at least this
much."""

FEW_RIGHTS = {
    # An executor's settings come with its pod: there is no ConfigMap to create.
    "spark.kubernetes.executor.disableConfigMap": "true",
    # A driver's Service is deleted with its pod; there are no volumes to claim.
    "spark.kubernetes.driver.service.deleteOnTermination": "false",
    "spark.kubernetes.driver.ownPersistentVolumeClaim": "false",
    "spark.kubernetes.driver.reusePersistentVolumeClaim": "false",
}
"""So that the driver only needs rights on pods."""

QUICK_START = {
    f"spark.{role}.extraJavaOptions": "-XX:TieredStopAtLevel=1" for role in ("driver", "executor")
}
"""No row goes through the JVMs, so they never earn back what they would spend on compiling: with
this, one takes half of the CPU time to start."""


def memory(pod: SparkPod) -> str:
    """In Spark's notation, whose units are also binary."""
    return pod.memory.removesuffix("i").lower()


def cpu(pod: SparkPod) -> str:
    return str(pod.cores if pod.cpu is None else pod.cpu)


def with_overhead(pod: SparkPod) -> Quantity:
    """The memory that a pod needs so that Spark's own memory is as requested."""
    found = re.fullmatch(r"(\d+)(Mi|Gi)", pod.memory)
    assert found
    mebibytes = int(found[1]) * (1024 if found[2] == "Gi" else 1)
    return f"{mebibytes + max(round(mebibytes * OVERHEAD_SHARE), LEAST_OVERHEAD_MEBIBYTES)}Mi"


def image(replay: OutboxReplay, operator: OperatorSettings) -> str:
    return replay.spec.pod.image or operator.spark_image


def pull_policy(replay: OutboxReplay, operator: OperatorSettings) -> str | None:
    return replay.spec.pod.image_pull_policy or operator.image_pull_policy or None


def executors_conf(
    replay: OutboxReplay, operator: OperatorSettings, attempt: int
) -> dict[str, str]:
    """For replays with executors."""
    made = {
        **QUICK_START,
        **replay.spec.spark_conf,
        **FEW_RIGHTS,
        "spark.dynamicAllocation.enabled": "false",
        # The first executor starts working at once, and the others join when they are up.
        "spark.scheduler.minRegisteredResourcesRatio": "0",
        "spark.driver.memoryOverheadFactor": str(OVERHEAD_SHARE),
        "spark.executor.memoryOverheadFactor": str(OVERHEAD_SHARE),
        "spark.kubernetes.executor.podNamePrefix": attempt_name(replay, attempt),
    }
    if secrets := replay.spec.pod.image_pull_secrets:
        made["spark.kubernetes.container.image.pullSecrets"] = ",".join(s.name for s in secrets)
    return made


def client_conf(replay: OutboxReplay, operator: OperatorSettings, attempt: int) -> dict[str, str]:
    """For a driver that runs in our own pod and creates executors itself. Kubernetes fills in
    `$(...)`."""
    executor = replay.spec.executor
    made = {
        **executors_conf(replay, operator, attempt),
        "spark.driver.host": "$(POD_IP)",
        "spark.driver.memory": memory(replay.spec.driver),
        "spark.executor.instances": str(executor.instances),
        "spark.executor.cores": str(executor.cores),
        "spark.executor.memory": memory(executor),
        "spark.kubernetes.namespace": replay.metadata.namespace,
        "spark.kubernetes.driver.pod.name": "$(POD_NAME)",  # executors are deleted with it
        "spark.kubernetes.container.image": image(replay, operator),
        "spark.kubernetes.executor.request.cores": cpu(executor),
        "spark.kubernetes.executor.podTemplateFile": EXECUTOR_FILE,
    }
    if policy := pull_policy(replay, operator):
        made["spark.kubernetes.container.image.pullPolicy"] = policy
    return made


def local_conf(replay: OutboxReplay) -> dict[str, str]:
    """For a driver that does all the work itself."""
    return {
        "spark.driver.extraJavaOptions": QUICK_START["spark.driver.extraJavaOptions"],
        **replay.spec.spark_conf,
        "spark.driver.memory": memory(replay.spec.driver),
    }

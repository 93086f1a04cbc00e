"""
Spark's settings for a replay: the same for both engines, and never more rights than they need.

A resource's `sparkConf` comes first, so that what is here wins.
"""

import re

from outbox_operator.replay.children.names import attempt_name
from outbox_operator.replay.children.pod import CONFIG_FILE, EXECUTOR_FILE
from outbox_operator.replay.spec.resource import OutboxReplay, SparkPod
from outbox_operator.settings import OperatorSettings
from outbox_operator.shared.objects import Quantity

SPARK_VERSION = "4.0.0"
"""The oldest that the image may hold; a SparkApplication must name one."""
MAIN_FILE = "/opt/spark/replay.py"
"""In the image."""
PROGRAM = ["--config", CONFIG_FILE]
"""What it is called with."""

OVERHEAD_SHARE = 0.4
LEAST_OVERHEAD_MEBIBYTES = 384
"""Of the memory, and in MiB: what Spark adds for programs in Python."""

FEW_RIGHTS = {
    # An executor's settings come with its pod: no ConfigMap to make.
    "spark.kubernetes.executor.disableConfigMap": "true",
    # A driver's Service goes with its pod; there are no volumes to claim.
    "spark.kubernetes.driver.service.deleteOnTermination": "false",
    "spark.kubernetes.driver.ownPersistentVolumeClaim": "false",
    "spark.kubernetes.driver.reusePersistentVolumeClaim": "false",
}
"""So that the driver may have rights on pods and on nothing else."""

QUICK_START = {
    f"spark.{role}.extraJavaOptions": "-XX:TieredStopAtLevel=1" for role in ("driver", "executor")
}
"""No row goes through the JVMs, so they never earn back what they would spend on compiling: with
this, one takes half of the CPU time to start."""


def memory(pod: SparkPod) -> str:
    """As Spark writes it, whose units are the binary ones, too."""
    return pod.memory.removesuffix("i").lower()


def cpu(pod: SparkPod) -> str:
    return str(pod.cores if pod.cpu is None else pod.cpu)


def with_overhead(pod: SparkPod) -> Quantity:
    """What a pod needs for Spark's own memory to be what was asked for."""
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
    """Where there are executors."""
    made = {
        **QUICK_START,
        **replay.spec.spark_conf,
        **FEW_RIGHTS,
        "spark.dynamicAllocation.enabled": "false",
        # The first executor begins, and the others join in when they have come.
        "spark.scheduler.minRegisteredResourcesRatio": "0",
        "spark.driver.memoryOverheadFactor": str(OVERHEAD_SHARE),
        "spark.executor.memoryOverheadFactor": str(OVERHEAD_SHARE),
        "spark.kubernetes.executor.podNamePrefix": attempt_name(replay, attempt),
    }
    if secrets := replay.spec.pod.image_pull_secrets:
        made["spark.kubernetes.container.image.pullSecrets"] = ",".join(s.name for s in secrets)
    return made


def client_conf(replay: OutboxReplay, operator: OperatorSettings, attempt: int) -> dict[str, str]:
    """Of a driver that runs in a pod of ours and asks for executors itself. `$(...)` is filled in
    by Kubernetes."""
    executor = replay.spec.executor
    made = {
        **executors_conf(replay, operator, attempt),
        "spark.driver.host": "$(POD_IP)",
        "spark.driver.memory": memory(replay.spec.driver),
        "spark.executor.instances": str(executor.instances),
        "spark.executor.cores": str(executor.cores),
        "spark.executor.memory": memory(executor),
        "spark.kubernetes.namespace": replay.metadata.namespace,
        "spark.kubernetes.driver.pod.name": "$(POD_NAME)",  # its executors go when it goes
        "spark.kubernetes.container.image": image(replay, operator),
        "spark.kubernetes.executor.request.cores": cpu(executor),
        "spark.kubernetes.executor.podTemplateFile": EXECUTOR_FILE,
    }
    if policy := pull_policy(replay, operator):
        made["spark.kubernetes.container.image.pullPolicy"] = policy
    return made


def local_conf(replay: OutboxReplay) -> dict[str, str]:
    """Of a driver that does it all itself."""
    return {
        "spark.driver.extraJavaOptions": QUICK_START["spark.driver.extraJavaOptions"],
        **replay.spec.spark_conf,
        "spark.driver.memory": memory(replay.spec.driver),
    }

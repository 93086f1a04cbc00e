"""
The SparkApplication: one attempt at a replay by the Kubeflow Spark operator.

Created once and never changed: any change of its spec would make that operator run it again.
Everything that its mutating webhook would have to add to pods (environment, volumes, security,
placement) is in the two templates, so that it works with the webhook off.
"""

from outbox_operator.replay.children.names import attempt_name
from outbox_operator.replay.children.pod import ATTEMPT, driver_template, executor_template
from outbox_operator.replay.children.spark_conf import (
    MAIN_FILE,
    PROGRAM,
    SPARK_VERSION,
    cpu,
    executors_conf,
    image,
    memory,
    pull_policy,
)
from outbox_operator.replay.spec.resource import OutboxReplay, SparkPod
from outbox_operator.replay.spec.target import TargetRelay
from outbox_operator.settings import OperatorSettings
from outbox_operator.shared.names import Manifest, owned, service_account_of

SPARK_API_VERSION = "sparkoperator.k8s.io/v1beta2"

NO_POLICY = {
    "spark.kubernetes.driver.pod.excludedFeatureSteps": (
        "org.apache.spark.deploy.k8s.features.NetworkPolicyFeatureStep"
    )
}
"""Newer versions of spark-submit create a NetworkPolicy for executors, which the Spark operator's
own role does not allow: the submission would fail."""


def build_spark_application(
    replay: OutboxReplay, relay: TargetRelay, operator: OperatorSettings, attempt: int
) -> Manifest:
    metadata = owned(replay, "driver", attempt_name(replay, attempt))
    metadata["labels"][ATTEMPT] = str(attempt)
    # The Spark operator puts these labels on both driver and executors, over the templates' own.
    del metadata["labels"]["app.kubernetes.io/component"]
    spec: Manifest = {
        "type": "Python",
        "mode": "cluster",
        "sparkVersion": SPARK_VERSION,
        "image": image(replay, operator),
        "mainApplicationFile": f"local://{MAIN_FILE}",
        "arguments": PROGRAM,
        "restartPolicy": {"type": "Never"},  # we decide whether there is another attempt
        "sparkConf": NO_POLICY | executors_conf(replay, operator, attempt),
        "driver": {
            **size(replay.spec.driver),
            "serviceAccount": service_account_of(replay),
            "template": driver_template(replay, relay, operator, attempt),
        },
        "executor": {
            **size(replay.spec.executor),
            "instances": replay.spec.executor.instances,
            "template": executor_template(replay, relay, operator, attempt),
        },
    }
    if policy := pull_policy(replay, operator):
        spec["imagePullPolicy"] = policy
    return {
        "apiVersion": SPARK_API_VERSION,
        "kind": "SparkApplication",
        "metadata": metadata,
        "spec": spec,
    }


def size(pod: SparkPod) -> Manifest:
    return {"cores": pod.cores, "coreRequest": cpu(pod), "memory": memory(pod)}

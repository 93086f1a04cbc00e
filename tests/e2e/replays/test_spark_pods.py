"""Spark's own Kubernetes scheduler with our image: a driver pod, two executor pods, the outbox."""

import json
from collections.abc import Mapping
from typing import Any

import yaml

from fixtures import workloads
from fixtures.cluster import Namespace
from fixtures.tools import Tools, scripts

ACCOUNT = "spark"

MAY_MAKE_EXECUTORS: list[dict[str, Any]] = [
    {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": ACCOUNT}},
    {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": {"name": ACCOUNT},
        "rules": [
            {
                "apiGroups": [""],
                "resources": ["pods", "services", "configmaps", "persistentvolumeclaims"],
                "verbs": ["create", "get", "list", "watch", "patch", "delete", "deletecollection"],
            }
        ],
    },
    {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": ACCOUNT},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": ACCOUNT},
        "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT}],
    },
]


def executor_template(image: str) -> str:
    executor = workloads.container(
        "spark-kubernetes-executor", image, env=[workloads.DSN_FROM_SECRET]
    )
    template = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"labels": {"app": "executor"}},
        "spec": workloads.pod(executor),
    }
    return yaml.safe_dump(template)


def driver(image: str, namespace: str) -> dict[str, Any]:
    conf = {
        "spark.executor.instances": "2",
        "spark.executor.cores": "1",
        "spark.executor.memory": "512m",
        # Little of what a node of two cores has to give: at one CPU each, which is the default,
        # the second would find no place beside whatever else runs there.
        "spark.kubernetes.executor.request.cores": "100m",
        "spark.kubernetes.container.image": image,
        "spark.kubernetes.container.image.pullPolicy": "IfNotPresent",
        "spark.kubernetes.namespace": namespace,
        "spark.kubernetes.driver.pod.name": "$(POD_NAME)",
        "spark.kubernetes.executor.podTemplateFile": "/scripts/executor.yaml",
        "spark.kubernetes.authenticate.driver.serviceAccountName": ACCOUNT,
        "spark.kubernetes.executor.deleteOnTermination": "false",
        "spark.driver.host": "$(POD_IP)",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "200s",  # else it begins with one
        "spark.ui.enabled": "false",
    }
    words = [word for name, value in conf.items() for word in ("--conf", f"{name}={value}")]
    runs = workloads.container(
        "driver",
        image,
        args=[
            "driver",
            "--master",
            "k8s://https://kubernetes.default.svc",
            *words,
            "/scripts/count_on_spark.py",
        ],
        env=[
            workloads.DSN_FROM_SECRET,
            {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            {"name": "SPARK_DRIVER_BIND_ADDRESS", "value": "$(POD_IP)"},
        ],
        volumeMounts=[{"name": "scripts", "mountPath": "/scripts"}],
        resources={"requests": {"cpu": "100m"}},
    )
    spec = workloads.pod(
        runs,
        volumes=[{"name": "scripts", "configMap": {"name": "spark"}}],
        serviceAccountName=ACCOUNT,
    )
    return workloads.job("count", {**spec, "automountServiceAccountToken": True})


def test_two_executor_pods_read_the_outbox(namespace: Namespace, images: Mapping[str, str]) -> None:
    namespace.apply(
        *workloads.postgres(images["postgres"]),
        *MAY_MAKE_EXECUTORS,
        workloads.config_map(
            "spark", {**scripts(), "executor.yaml": executor_template(images["spark"])}
        ),
    )
    tools = Tools(namespace, images["relay"])
    namespace.wait_for_rollout("postgres")
    migrate = workloads.container(
        "main", images["relay"], args=["migrate"], env=[workloads.DSN_FROM_SECRET]
    )
    namespace.apply(workloads.job("migrate", workloads.pod(migrate)))
    namespace.wait_for_job("migrate")
    tools.wait()
    tools.finish(tools.start("emit.py", 3000, 10, 0, dsn=workloads.DSN, kafka=workloads.KAFKA), 60)

    namespace.apply(driver(images["spark"], namespace.name))
    namespace.wait_for_job("count", 240)

    (drove,) = namespace.pods("job-name=count")
    told = json.loads(namespace.logs(drove.metadata.name).strip().splitlines()[-1])
    executors = namespace.pods("app=executor")
    assert told["events"] == 3000
    assert told["executors"] == sorted(pod.metadata.name for pod in executors)
    assert len(told["executors"]) == 2
    for pod in executors:  # so they go when the driver goes
        assert [owner.name for owner in pod.metadata.owner_references] == [drove.metadata.name]

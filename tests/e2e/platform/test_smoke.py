"""The cluster does what Kubernetes does: the rest of these tests takes it for granted."""

from typing import Any

import pytest

from fixtures.cluster import Namespace

pytestmark = pytest.mark.timeout(300)

STRICT = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}


def pod(image: str, *arguments: str, **more: object) -> dict[str, Any]:
    """As the level `restricted` wants it."""
    container = {
        "name": "main",
        "image": image,
        "args": list(arguments),
        "securityContext": STRICT,
        "resources": {"limits": {"memory": "32Mi", "cpu": "200m"}},
    }
    user = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    return {"securityContext": user, "containers": [container], **more}


def deployment(name: str, replicas: int, spec: dict[str, Any]) -> dict[str, Any]:
    labels = {"app": name}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
    }


def job_spec(image: str, *arguments: str) -> dict[str, Any]:
    return {
        "backoffLimit": 0,
        "template": {"spec": pod(image, *arguments, restartPolicy="Never")},
    }


def test_a_deployment_becomes_ready_and_follows_its_replicas(
    namespace: Namespace, pause_image: str
) -> None:
    namespace.apply(deployment("pause", 2, pod(pause_image)))
    namespace.wait_for_rollout("pause")
    namespace.apply(deployment("pause", 1, pod(pause_image)))
    namespace.wait_for_rollout("pause")
    namespace.wait(lambda: len(namespace.pods()) == 1, 60, "one pod left")


def test_a_pod_reaches_others_by_the_name_of_their_service(
    namespace: Namespace, probe_image: str
) -> None:
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "web"},
        "spec": {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 8080}]},
    }
    ask = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "ask"},
        "spec": job_spec(probe_image, "get", f"http://web.{namespace.name}.svc.cluster.local"),
    }
    namespace.apply(service, deployment("web", 2, pod(probe_image, "serve", ":8080")))
    namespace.wait_for_rollout("web")
    namespace.apply(ask)
    namespace.wait_for_job("ask")

    (asked,) = namespace.pods("job-name=ask")
    answered = namespace.logs(asked.metadata.name).strip()
    web = [pod.metadata.name for pod in namespace.pods("app=web")]
    assert answered in web
    # A pod reaches its own service, too, even if the answer is its own.
    said = namespace.run(web[0], ["/probe", "get", "http://web"])
    assert said.strip() in web


def test_a_cron_job_starts_jobs(namespace: Namespace, probe_image: str) -> None:
    namespace.apply(
        {
            "apiVersion": "batch/v1",
            "kind": "CronJob",
            "metadata": {"name": "every-minute"},
            "spec": {
                "schedule": "* * * * *",
                "jobTemplate": {"spec": job_spec(probe_image, "get", HEALTH)},
            },
        }
    )

    def jobs() -> list[str]:
        listed = namespace.kube.batch.list_namespaced_job(namespace.name).items
        return [job.metadata.name for job in listed]

    namespace.make_due("every-minute")
    first, *_ = namespace.wait(jobs, 30, "a job of the cron job")
    namespace.wait_for_job(first)


HEALTH = "http://kubernetes.default.svc:443"
"""Plain HTTP to the API server: it answers with an error, and an answer is all we want."""


def test_what_a_strict_namespace_forbids_is_refused(namespace: Namespace, pause_image: str) -> None:
    loose = {"containers": [{"name": "main", "image": pause_image}]}
    namespace.apply(deployment("loose", 1, loose))

    def refused() -> bool:
        events = namespace.kube.core.list_namespaced_event(namespace.name).items
        return any('violates PodSecurity "restricted' in (event.message or "") for event in events)

    namespace.wait(refused, 30, "the refusal of the pod")
    assert namespace.pods() == []

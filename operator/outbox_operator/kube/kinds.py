"""The kinds of objects that the operator uses, and their paths on the API server."""

from typing import NamedTuple

from outbox_operator.kinds import CUSTOM_KINDS
from outbox_operator.shared.objects import GROUP, VERSION


class ObjectKind(NamedTuple):
    name: str
    api: str
    plural: str
    optional: bool = False
    """It belongs to another operator: not every cluster has it."""

    def path(self, namespace: str | None, name: str | None = None, part: str | None = None) -> str:
        where = f"/namespaces/{namespace}" if namespace else ""
        rest = "".join(f"/{word}" for word in (name, part) if word)
        return f"{self.api}{where}/{self.plural}{rest}"


CUSTOM_API = f"/apis/{GROUP}/{VERSION}"
CUSTOM = {
    kind.name: ObjectKind(kind.name, CUSTOM_API, kind.plural) for kind in CUSTOM_KINDS.values()
}
"""Our own kinds."""
SECRETS = ObjectKind("Secret", "/api/v1", "secrets")
EVENTS = ObjectKind("Event", "/api/v1", "events")
PODS = ObjectKind("Pod", "/api/v1", "pods")
SPARK_APPLICATIONS = ObjectKind(
    "SparkApplication", "/apis/sparkoperator.k8s.io/v1beta2", "sparkapplications", optional=True
)

CHILDREN = {
    kind.name: kind
    for kind in (
        ObjectKind("ServiceAccount", "/api/v1", "serviceaccounts"),
        ObjectKind("RoleBinding", "/apis/rbac.authorization.k8s.io/v1", "rolebindings"),
        ObjectKind("ConfigMap", "/api/v1", "configmaps"),
        ObjectKind("Service", "/api/v1", "services"),
        ObjectKind("NetworkPolicy", "/apis/networking.k8s.io/v1", "networkpolicies"),
        ObjectKind("PodDisruptionBudget", "/apis/policy/v1", "poddisruptionbudgets"),
        ObjectKind("Deployment", "/apis/apps/v1", "deployments"),
        ObjectKind("CronJob", "/apis/batch/v1", "cronjobs"),
        ObjectKind("Job", "/apis/batch/v1", "jobs"),
        SPARK_APPLICATIONS,
    )
}
"""What the operator creates, in this order for a new resource."""

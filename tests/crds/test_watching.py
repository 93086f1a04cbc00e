"""One right is missing: the pod is not ready, metric and log name it; granted, it goes on."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from fixtures.chart import RELEASE, nested, of_kind, render
from fixtures.cluster import Kube, Namespace
from fixtures.made_resources import relay_body
from fixtures.operator_process import OperatorProcess, operating
from outbox_operator.shared.objects import API_VERSION

RBAC = "rbac.authorization.k8s.io/v1"
RIGHTS = [
    ("list", "configmaps", "ConfigMap"),
    ("watch", "pods", "Pod"),
    ("list", "outboxrelays", "OutboxRelay"),
    ("watch", "outboxreplays", "OutboxReplay"),
]
"""Of our own watches, and of Kopf's."""


class Account:
    """The operator's, with the chart's rights in some namespaces."""

    def __init__(self, home: Namespace, kubeconfig: Path) -> None:
        self._home = home
        self.kubeconfig = kubeconfig
        core = home.kube.core
        core.create_namespaced_service_account(home.name, {"metadata": {"name": RELEASE}})
        made = core.create_namespaced_service_account_token(RELEASE, home.name, {"spec": {}})
        config = yaml.safe_load(home.kube.cluster.kubeconfig.read_text())
        config["users"] = [{"name": u["name"], "user": {"token": made.status.token}}
                           for u in config["users"]]  # fmt: skip
        kubeconfig.write_text(yaml.safe_dump(config))

    def grant(self, where: Namespace, without: tuple[str, str] | None = None) -> None:
        """All but that verb of that resource."""
        objects = render(nested("watch.namespaces", [where.name]), namespace=self._home.name)
        rules = next(r for r in of_kind(objects, "Role") if r["metadata"]["name"] == RELEASE)[
            "rules"
        ]
        where.apply(
            {
                "apiVersion": RBAC,
                "kind": "Role",
                "metadata": {"name": RELEASE},
                "rules": [r for rule in rules for r in parts(rule, without)],
            },
            {
                "apiVersion": RBAC,
                "kind": "RoleBinding",
                "metadata": {"name": RELEASE},
                "roleRef": {"apiGroup": RBAC.partition("/")[0], "kind": "Role", "name": RELEASE},
                "subjects": [
                    {"kind": "ServiceAccount", "name": RELEASE, "namespace": self._home.name}
                ],
            },
        )


def parts(rule: dict[str, Any], without: tuple[str, str] | None) -> Iterator[dict[str, Any]]:
    """The rule, resource by resource."""
    for resource in rule["resources"]:
        verbs = [verb for verb in rule["verbs"] if (verb, resource) != without]
        yield {**rule, "resources": [resource], "verbs": verbs}


def synced(operator: OperatorProcess, kind: str, namespace: Namespace) -> float | None:
    name = f'outbox_operator_watch_synced{{kind="{kind}",watched_namespace="{namespace.name}"}} '
    lines = operator.ask("/metrics")[1].splitlines()
    return next((float(line.removeprefix(name)) for line in lines if line.startswith(name)), None)


def is_looked_after(namespace: Namespace) -> bool:
    found = namespace.get(API_VERSION, "OutboxRelay", "orders") or {}
    return bool(found.get("status"))


@pytest.mark.parametrize(("verb", "resource", "kind"), RIGHTS, ids=lambda given: str(given))
def test_a_missing_right_is_seen_from_outside_and_named(
    server: Kube, namespace: Namespace, tmp_path: Path, verb: str, resource: str, kind: str
) -> None:
    account = Account(namespace, tmp_path / "kubeconfig")
    account.grant(namespace, without=(verb, resource))
    namespace.apply(relay_body(replicas=0) | {"metadata": {"name": "orders"}})
    environ = {"KUBECONFIG": str(account.kubeconfig)}
    with operating(tmp_path / "log", environ, NAMESPACES=namespace.name) as operator:
        namespace.wait(lambda: f"cannot {verb} resource" in operator.ask("/readyz")[1], 30, "told")
        status, text = operator.ask("/readyz")
        assert (status, operator.ask("/healthz")) == (503, (200, "alive\n"))
        assert f"namespace {namespace.name}: {resource}" in text
        assert synced(operator, kind, namespace) == 0
        assert f"kubectl auth can-i list {resource}" in operator.log

        account.grant(namespace)
        namespace.wait(lambda: operator.ask("/readyz") == (200, "ready\n"), 40, "ready")
        assert synced(operator, kind, namespace) == 1
        namespace.wait(lambda: is_looked_after(namespace), 30, "it goes on by itself")
        assert len(operator.lives) == 1


def test_a_namespace_without_rights_is_shown_and_the_other_one_is_managed(
    server: Kube, namespace: Namespace, tmp_path: Path
) -> None:
    account = Account(namespace, tmp_path / "kubeconfig")
    account.grant(namespace)
    namespace.apply(relay_body(replicas=0) | {"metadata": {"name": "orders"}})
    environ = {"KUBECONFIG": str(account.kubeconfig)}
    places = f"default,{namespace.name}"
    with operating(tmp_path / "log", environ, NAMESPACES=places) as operator:
        namespace.wait(lambda: operator.ask("/readyz")[0] == 200, 30, "ready")
        assert operator.ask("/readyz")[1].startswith("ready in 1 of 2 namespaces")
        assert "namespace default: pods" in operator.ask("/readyz")[1]
        assert synced(operator, "Pod", namespace) == 1
        assert synced(operator, "Pod", Namespace(server, "default")) == 0
        namespace.wait(lambda: is_looked_after(namespace), 30, "looked after")

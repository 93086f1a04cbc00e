"""A real API server's verdict: it takes every object, and grants what is listed and no more."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from fixtures.api_server import Right, may
from fixtures.chart import RELEASE, ROOT, Object, merged, nested, of_kind, only, render
from fixtures.cluster import MANAGER, Kube, Namespace
from fixtures.made_resources import outbox_relay
from fixtures.made_seen import deployment, seen
from outbox_operator.kinds import REPLAY
from outbox_operator.kube.kinds import CHILDREN
from outbox_operator.relay.decide.children import decide_children
from outbox_operator.relay.decide.leftovers import decide_leftovers
from outbox_operator.replay.decide.children import ACCESS
from outbox_operator.replay.decide.step import ENGINES
from outbox_operator.settings import OperatorSettings

INSTALL = (ROOT / "docs" / "install.md").read_text()
VERBS = ("get", "list", "watch", "create", "update", "patch", "delete", "deletecollection")
MORE_VERBS = ("bind", "escalate", "impersonate", "approve", "sign", "*")


def rights(group: str, resources: str, verbs: str) -> set[Right]:
    return {(group, resource, verb) for resource in resources.split() for verb in verbs.split()}


OUTBOX = "outbox.dev"
SPARK = "sparkoperator.k8s.io"
RBAC = "rbac.authorization.k8s.io"
OPERATOR = (
    rights(OUTBOX, "outboxrelays", "get list watch patch")
    | rights(OUTBOX, "outboxreplays", "get list watch delete")
    | rights(OUTBOX, "outboxrelays/status outboxreplays/status", "patch")
    | rights(OUTBOX, "outboxrelays/finalizers outboxreplays/finalizers", "update")
    | rights("", "services", "get list watch create patch")
    | rights("", "configmaps serviceaccounts", "get list watch create patch delete")
    | rights("apps", "deployments", "get list watch create patch")
    | rights("batch", "cronjobs", "get list watch create patch")
    | rights("batch", "jobs", "get list watch create patch delete")
    | rights("networking.k8s.io", "networkpolicies", "get list watch create patch delete")
    | rights("policy", "poddisruptionbudgets", "get list watch create patch delete")
    | rights(SPARK, "sparkapplications", "get list watch create delete")
    | rights(RBAC, "rolebindings", "get list watch create patch delete")
    | rights("", "pods", "list watch")
    | rights("", "secrets", "get")
    | rights("", "events", "create")
)


# What the server takes ---------------------------------------------------------------------------


def dry_run(server: Kube, found: Object) -> None:
    """As `kubectl apply --server-side --dry-run=server --validate=strict`."""
    api = server.dynamic.resources.get(api_version=found["apiVersion"], kind=found["kind"])
    api.server_side_apply(
        body=found,
        name=found["metadata"]["name"],
        namespace=found["metadata"].get("namespace"),
        field_manager=MANAGER,
        force_conflicts=True,
        dry_run="All",
        query_params=[("fieldValidation", "Strict")],
    )


@pytest.mark.parametrize("namespaced", [False, True], ids=["cluster-wide", "namespaced"])
def test_the_server_takes_every_object(
    server: Kube, namespace: Namespace, namespaced: bool
) -> None:
    watched = [namespace.name] if namespaced else []
    values = merged(
        nested("watch.namespaces", watched),
        nested("podDisruptionBudget.enabled", True),
        nested("networkPolicy.from", [{"podSelector": {}}]),
        nested("networkPolicy.egress", [{"to": [{"ipBlock": {"cidr": "0.0.0.0/0"}}]}]),
    )
    for found in render(values, namespace=namespace.name):
        dry_run(server, found)


def test_the_operators_pod_is_let_into_a_restricted_namespace(
    server: Kube, namespace: Namespace
) -> None:
    """Of a Deployment, a namespace that enforces it warns only."""
    objects = render(namespace=namespace.name)
    template = only(objects, "Deployment")["spec"]["template"]
    metadata = {**template["metadata"], "name": "operator", "namespace": namespace.name}
    namespace.apply(only(objects, "ServiceAccount"))
    dry_run(server, {"apiVersion": "v1", "kind": "Pod", **template, "metadata": metadata})


# What it grants ----------------------------------------------------------------------------------


@pytest.fixture
def granted(server: Kube, namespace: Namespace) -> Iterator[Any]:
    """Have a chart's rights in the cluster, until the test ends."""
    made: list[Object] = []

    def grant(values: dict[str, Any]) -> None:
        objects = render(values, release=namespace.name, namespace=namespace.name)
        for kind in ("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"):
            for found in of_kind(objects, kind):
                made.append(found)
                api = server.dynamic.resources.get(api_version=found["apiVersion"], kind=kind)
                api.create(body=found, namespace=found["metadata"].get("namespace"))

    yield grant
    for found in made:
        if "namespace" not in found["metadata"]:
            api = server.dynamic.resources.get(api_version=found["apiVersion"], kind=found["kind"])
            api.delete(name=found["metadata"]["name"])


def account(namespace: Namespace) -> str:
    objects = render(release=namespace.name, namespace=namespace.name)
    name = only(objects, "ServiceAccount")["metadata"]["name"]
    return f"system:serviceaccount:{namespace.name}:{name}"


def everything(kube: Kube) -> set[Right]:
    """Every resource that the server knows, with every verb that there is."""
    found: set[Right] = {("*", "*", "*")}
    listed = json.loads(kube.dynamic.request("get", "/apis", serialize=False).data)["groups"]
    paths = [("", "/api/v1")] + [
        (group["name"], f"/apis/{version['groupVersion']}")
        for group in listed
        for version in group["versions"]
    ]
    more = {OUTBOX: ["outboxrelays/finalizers", "outboxreplays/finalizers"]}
    for group, path in paths:
        known = json.loads(kube.dynamic.request("get", path, serialize=False).data)["resources"]
        for resource in [*(r["name"] for r in known), *more.get(group, ())]:
            found |= {(group, resource, verb) for verb in VERBS + MORE_VERBS}
    # Which only some servers know.
    return found | {(SPARK, "sparkapplications", verb) for verb in VERBS + MORE_VERBS}


def more_than_nobody(kube: Kube, user: str, where: str) -> set[Right]:
    """What somebody may do whom nobody has granted anything, left out."""
    return {
        right
        for right in everything(kube)
        if may(kube, user, right, where)
        and not may(kube, "system:serviceaccount:default:nobody", right, where)
    }


def test_in_the_whole_cluster_it_may_do_what_is_listed_and_no_more(
    server: Kube, namespace: Namespace, granted: Any
) -> None:
    granted({})
    assert more_than_nobody(server, account(namespace), "default") == OPERATOR


def test_with_namespaces_it_may_do_so_there_and_nothing_elsewhere(
    server: Kube, namespace: Namespace, granted: Any
) -> None:
    granted(nested("watch.namespaces", [namespace.name]))
    assert more_than_nobody(server, account(namespace), namespace.name) == OPERATOR
    for where in ("default", ""):  # empty: in all namespaces, and what is in none
        assert more_than_nobody(server, account(namespace), where) == set()


@pytest.mark.parametrize("namespaced", [False, True], ids=["cluster-wide", "namespaced"])
def test_it_may_give_drivers_their_role_and_nobody_another(
    server: Kube, namespace: Namespace, granted: Any, namespaced: bool
) -> None:
    granted(nested("watch.namespaces", [namespace.name] if namespaced else []))
    _, _, user = account(namespace).rpartition(":")
    for kind in ("roles", "clusterroles"):
        bind = (RBAC, kind, "bind")
        ours = may(server, account(namespace), bind, namespace.name, f"{user}-driver")
        assert ours is (kind == ("roles" if namespaced else "clusterroles"))
        assert not may(server, account(namespace), bind, namespace.name, "admin")


def test_the_children_that_it_makes_are_those_that_it_may_make() -> None:
    """So that a new kind of child is not forgotten here."""
    creates = {(group, kind) for group, kind, verb in OPERATOR if verb == "create"}
    groups = {kind.plural: kind.api.split("/")[2] for kind in CHILDREN.values()}
    made = {("" if g == "v1" else g, plural) for plural, g in groups.items()}
    assert creates == made | {("", "events")}


def test_what_it_deletes_is_what_it_may_delete() -> None:
    """All else goes with its owner."""
    without = outbox_relay(pod={"serviceAccountName": "mine"}, networkPolicy={"enabled": False})
    children = decide_children(without, seen(), OperatorSettings(), 1)
    before: dict[tuple[str, str], dict[str, Any]] = {
        (kind, "orders-relay"): {"metadata": {"ownerReferences": [{"uid": without.metadata.uid}]}}
        for kind in ("ConfigMap", "ServiceAccount")
    }
    around = seen(deployment=deployment(), children=before)
    leftovers = decide_leftovers(without, around, children, 1)
    unwanted = {kind for kind, _ in (*children.unwanted, *leftovers)}
    deleted = {CHILDREN[kind].plural for kind in (*unwanted, *ENGINES, *ACCESS)}
    assert {kind for _, kind, verb in OPERATOR if verb == "delete"} == deleted | {REPLAY.plural}


def test_the_role_lists_the_same_rights() -> None:
    (role,) = [r for r in of_kind(render(), "ClusterRole") if r["metadata"]["name"] == RELEASE]
    listed = {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert listed == OPERATOR | {(RBAC, "clusterroles", "bind")}


def test_the_document_lists_the_same_rights() -> None:
    rows = re.findall(r"^\| (.+?) \| ([a-z ]+) \| ", INSTALL.partition("## Rights")[2], re.M)
    listed = {
        (resource, verb)
        for resources, verbs in rows
        for resource in re.findall(r"`([\w/]+)`", resources)
        for verb in verbs.split()
    }
    # In the document it is "their `status`".
    assert listed == {(re.sub(r".*/status", "status", kind), verb) for _, kind, verb in OPERATOR}


@pytest.mark.parametrize(
    ("role", "allowed"),
    [
        ("view", {"get", "list", "watch"}),
        ("edit", set(VERBS)),
        ("admin", set(VERBS)),
    ],
)
def test_people_may_with_our_kinds_what_they_may_with_others(
    server: Kube, namespace: Namespace, granted: Any, role: str, allowed: set[str]
) -> None:
    granted({})
    namespace.apply(
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": {"name": "ann"},
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io",
                "kind": "ClusterRole",
                "name": role,
            },
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "ann"}],
        }
    )

    def has(kind: str) -> set[str]:
        return {v for v in VERBS if may(server, "ann", (OUTBOX, kind, v), namespace.name)}

    # The roles are put together by a controller, a moment later.
    for kind in ("outboxrelays", "outboxreplays"):
        namespace.wait(lambda kind=kind: has(kind) == allowed, 20, f"{role}: {kind}")  # type: ignore[misc]
    assert not may(server, "ann", (OUTBOX, "outboxrelays/status", "patch"), namespace.name)
    scales = may(server, "ann", (OUTBOX, "outboxrelays/scale", "patch"), namespace.name)
    assert scales is ("update" in allowed)

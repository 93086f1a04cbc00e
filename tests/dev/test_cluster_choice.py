"""Which kind of cluster, and under which name and addresses."""

from dataclasses import replace
from ipaddress import IPv4Network

import pytest

from dev.cluster.choice import Choice, Surroundings, choose
from dev.cluster.errors import ClusterError
from dev.cluster.instance import from_environment

BARE = Surroundings(
    asked="", kubeconfig="", docker_answers=False, node_is_there=False, linux=True, root=True
)


@pytest.mark.parametrize(
    ("seen", "kind"),
    [
        (BARE, "node"),
        (replace(BARE, docker_answers=True), "kind"),
        (replace(BARE, docker_answers=True, root=False), "kind"),
        (replace(BARE, docker_answers=True, node_is_there=True), "node"),
        (replace(BARE, docker_answers=True, asked="node"), "node"),
        (replace(BARE, asked="existing", kubeconfig="/k"), "existing"),
        (replace(BARE, kubeconfig="/k"), "node"),  # a KUBECONFIG alone is nobody's permission
    ],
)
def test_the_kind_follows_from_what_is_there(seen: Surroundings, kind: str) -> None:
    assert choose(seen).kind == kind


def test_the_reason_is_told() -> None:
    assert choose(replace(BARE, docker_answers=True)) == Choice("kind", "a Docker engine answers")


@pytest.mark.parametrize(
    ("seen", "message"),
    [
        (replace(BARE, asked="minikube"), r"'minikube'\n.*one of: existing, kind, node"),
        (replace(BARE, asked="existing"), r"KUBECONFIG\D*\n.*export KUBECONFIG"),
        (replace(BARE, root=False), r"needs root\n.*sudo make cluster.*start Docker"),
        (replace(BARE, linux=False), r"needs Linux\n.*start Docker"),
    ],
)
def test_what_cannot_be_is_refused_with_a_cure(seen: Surroundings, message: str) -> None:
    with pytest.raises(ClusterError, match=message):
        choose(seen)


def test_an_instances_networks_lie_in_its_range_and_apart() -> None:
    main = from_environment({})
    assert main.range == IPv4Network("10.87.0.0/16")
    assert main.pods.subnet_of(main.range)
    assert main.services.subnet_of(main.range)
    assert not main.pods.overlaps(main.services)
    for address in (main.host_address, main.address):
        assert address in main.range
        assert address not in main.pods
        assert address not in main.services


def test_two_instances_share_nothing() -> None:
    main, other = from_environment({}), from_environment({"OUTBOX_CLUSTER_INSTANCE": "other"})
    assert not main.range.overlaps(other.range)
    for name in ("folder", "link", "cgroup"):
        assert getattr(main, name) != getattr(other, name)
    assert other == from_environment({"OUTBOX_CLUSTER_INSTANCE": "other"})


def test_a_links_name_fits_the_kernel() -> None:
    longest = from_environment({"OUTBOX_CLUSTER_INSTANCE": "a" * 12})
    assert len(longest.link) <= 15


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"OUTBOX_CLUSTER_INSTANCE": "a" * 13}, "small letters and digits"),
        ({"OUTBOX_CLUSTER_INSTANCE": "../x"}, "small letters and digits"),
        ({"OUTBOX_CLUSTER_RANGE": "10.1.0.0/24"}, "not a /16"),
        ({"OUTBOX_CLUSTER_RANGE": "10.1.2.3/16"}, "host bits"),
        ({"OUTBOX_CLUSTER_RANGE": "here"}, "10.99.0.0/16"),
    ],
)
def test_a_bad_name_or_range_is_refused(environ: dict[str, str], message: str) -> None:
    with pytest.raises(ClusterError, match=message):
        from_environment(environ)

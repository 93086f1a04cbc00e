"""A cluster by kind, with programs in its place that say what they were asked."""

from pathlib import Path

import pytest

from dev.cluster import binaries, kind_cluster
from dev.cluster.errors import ClusterError
from dev.cluster.instance import from_environment
from dev.cluster.kind_cluster import KindCluster

PROGRAM = """#!/bin/sh
cd {folder}
echo "${{0##*/}} $1 $2" >>asked
case "${{0##*/}} $1" in
    "kind get") cat clusters ;;
    "kind export") [ -e finished ] || {{ echo "no such file: admin.conf" >&2; exit 1; }} ;;
    "kind create") touch finished; echo "$4" >clusters ;;
    "kind delete") : >clusters ;;
    "kubectl wait") [ -e ready ] || {{ echo "timed out" >&2; exit 1; }} ;;
esac
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("kind", "kubectl"):
        program = tmp_path / name
        program.write_text(PROGRAM.format(folder=tmp_path))
        program.chmod(0o755)
    for name in ("clusters", "asked", "ready"):
        (tmp_path / name).touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(binaries, "kind", lambda: tmp_path / "kind")
    monkeypatch.setattr(binaries, "client", lambda: tmp_path)
    monkeypatch.setattr(kind_cluster, "docker_answers", lambda: True)
    return tmp_path


@pytest.fixture
def kind(place: Path) -> KindCluster:
    return KindCluster(from_environment({}))


def asked(place: Path) -> list[str]:
    lines = (place / "asked").read_text().splitlines()
    (place / "asked").write_text("")
    return [line for line in lines if line != "kind get clusters"]


def test_up_creates_it_and_up_again_only_looks(kind: KindCluster, place: Path) -> None:
    kind.up()
    assert asked(place) == ["kind create cluster", "kubectl wait node"]
    kind.up()
    assert asked(place) == ["kind export kubeconfig", "kubectl wait node"]


def test_a_creation_that_was_killed_is_begun_anew(kind: KindCluster, place: Path) -> None:
    kind.up()
    (place / "finished").unlink()
    asked(place)
    kind.up()
    assert asked(place) == [
        "kind export kubeconfig",
        "kind delete cluster",
        "kind create cluster",
        "kubectl wait node",
    ]


def test_nodes_that_do_not_become_ready_are_told(kind: KindCluster, place: Path) -> None:
    (place / "ready").unlink()
    with pytest.raises(ClusterError, match=r"not Ready after 120s: timed out\n.*cluster-down"):
        kind.up()


def test_two_clones_share_no_cluster(place: Path) -> None:
    first, second = (KindCluster(from_environment({}), owner=place / name) for name in "ab")
    first.up()
    assert first.is_there
    assert not second.is_there
    assert first.kubeconfig != second.kubeconfig

"""
The cluster that is meant: one of three kinds behind one face, and how a shell gets at it.

Called by `__main__` and by the fixtures of tests/e2e.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Protocol

from . import binaries
from .builtin.node import BuiltInNode
from .choice import choose, look
from .errors import ClusterError
from .existing_cluster import ExistingCluster
from .image import Image
from .instance import from_environment
from .kind_cluster import KindCluster
from .progress import say


class Cluster(Protocol):
    kubeconfig: Path

    @property
    def is_there(self) -> bool: ...
    def prepare(self) -> None:
        """What takes minutes, and only once."""

    def up(self) -> None: ...
    def down(self, any_owner: bool = False) -> None: ...
    def status(self) -> bool: ...
    def load(self, images: Iterable[Image]) -> None: ...
    def reference(self, image: Image) -> str: ...


def chosen(environ: Mapping[str, str], loudly: bool = False) -> Cluster:
    instance = from_environment(environ)
    node = BuiltInNode(instance)
    choice = choose(look(environ, node.is_there))
    if loudly:
        names = {"existing": "an existing cluster", "kind": "kind", "node": "the built-in node"}
        say(f"{names[choice.kind]}, because {choice.reason}")
    match choice.kind:
        case "existing":
            return ExistingCluster(environ)
        case "kind":
            return KindCluster(instance)
        case "node":
            return node


def exports(cluster: Cluster, environ: Mapping[str, str]) -> dict[str, str]:
    if not isinstance(cluster, ExistingCluster) and not cluster.kubeconfig.exists():
        raise ClusterError("there is no cluster", "make cluster")
    exported = {
        "KUBECONFIG": str(cluster.kubeconfig),
        "PATH": f"{binaries.client()}:{environ.get('PATH', '')}",
    }
    if isinstance(cluster, BuiltInNode) and any(n.lower().endswith("_proxy") for n in environ):
        known = environ.get("NO_PROXY") or environ.get("no_proxy")
        direct = ",".join(filter(None, [known, str(cluster.instance.range)]))
        exported |= {"NO_PROXY": direct, "no_proxy": direct}
    return exported

"""
Which kind of cluster: one that exists, kind, or the built-in node.

Called by `clusters`, which prints the reason. The decision is a function of values; `look` is
the only part that asks the machine.
"""

import os
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from .errors import ClusterError

Kind = Literal["existing", "kind", "node"]
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True)
class Surroundings:
    asked: str
    """The value of OUTBOX_CLUSTER; empty when unset."""
    kubeconfig: str
    docker_answers: bool
    node_is_there: bool
    """A built-in node was started and not taken down."""
    linux: bool
    root: bool


@dataclass(frozen=True)
class Choice:
    kind: Kind
    reason: str


def choose(seen: Surroundings) -> Choice:
    if seen.asked:
        kind = next((kind for kind in KINDS if kind == seen.asked), None)
        if kind is None:
            raise ClusterError(
                f"OUTBOX_CLUSTER is {seen.asked!r}", f"set it to one of: {', '.join(KINDS)}"
            )
        if kind == "existing" and not seen.kubeconfig:
            raise ClusterError(
                "OUTBOX_CLUSTER is 'existing', but KUBECONFIG does not name one",
                "export KUBECONFIG=/path/to/its/kubeconfig",
            )
        return Choice(kind, f"OUTBOX_CLUSTER={kind}")
    if seen.node_is_there:
        return Choice("node", "it was started before and is not taken down")
    if seen.docker_answers:
        return Choice("kind", "a Docker engine answers")
    if not seen.linux:
        raise ClusterError(
            "no Docker engine answers, and the built-in node needs Linux",
            "start Docker, or export OUTBOX_CLUSTER=existing and KUBECONFIG",
        )
    if not seen.root:
        raise ClusterError(
            "no Docker engine answers, and the built-in node needs root",
            "run it as root (sudo make cluster), start Docker, "
            "or export OUTBOX_CLUSTER=existing and KUBECONFIG",
        )
    return Choice("node", "no Docker engine answers; Linux, and we are root")


def look(environ: Mapping[str, str], node_is_there: bool) -> Surroundings:
    asked = environ.get("OUTBOX_CLUSTER", "")
    return Surroundings(
        asked=asked,
        kubeconfig=environ.get("KUBECONFIG", ""),
        docker_answers=not asked and not node_is_there and docker_answers(),
        node_is_there=node_is_there,
        linux=platform.system() == "Linux",
        root=os.geteuid() == 0,
    )


def docker_answers() -> bool:
    """The engine, not the client: `docker --version` works without one."""
    try:
        asked = subprocess.run(["docker", "info"], capture_output=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return asked.returncode == 0

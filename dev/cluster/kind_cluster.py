"""
A cluster by kind, where a Docker engine answers.

As small as it can be: kind does the work, and keeps nothing but containers. Chosen by `clusters`.
"""

import hashlib
import os
import subprocess
from collections.abc import Iterable
from pathlib import Path

from . import binaries
from .choice import docker_answers
from .errors import ClusterError
from .image import Image
from .instance import Instance
from .progress import say, step

IMAGE = (
    "kindest/node:v1.35.0@sha256:452d707d4862f52530247495d180205e029056831160e22870e37e3f6c1ac31f"
)
"""The one that kind's release was made with; others may not fit together."""

CLONE = Path(__file__).resolve().parents[2]
WITHIN = "120s"
"""Until its nodes are Ready."""


class KindCluster:
    def __init__(self, instance: Instance, owner: Path = CLONE) -> None:
        # Each clone has its own: another's images have the same names.
        clone = hashlib.sha256(str(owner).encode()).hexdigest()[:6]
        self._name = f"outbox-{instance.name}-{clone}"
        self.kubeconfig = binaries.cache() / f"kind-{instance.name}-{clone}.kubeconfig"

    @property
    def is_there(self) -> bool:
        return self._name in self._kind("get", "clusters").split()

    def prepare(self) -> None:
        binaries.kind()

    def up(self) -> None:
        if self.is_there and self._has_begun():
            # Docker restarts its containers by itself, so that is all there is to heal.
            self._wait_until_ready()
            say(f"kind cluster {self._name} is up")
            return
        with step("creating a kind cluster, about a minute, after fetching its image of 350 MB"):
            self._kind("create", "cluster", *self._named(), "--image", IMAGE, "--wait", WITHIN)
        self._wait_until_ready()  # kind itself does not mind if they are not

    def down(self, any_owner: bool = False) -> None:
        self._kind("delete", "cluster", *self._named())
        self.kubeconfig.unlink(missing_ok=True)
        say(f"kind cluster {self._name} is gone")

    def status(self) -> bool:
        print(f"kind cluster {self._name}: {'there' if self.is_there else 'not there'}")
        return self.is_there

    def load(self, images: Iterable[Image]) -> None:
        for image in images:
            with step(f"loading {image.reference}"):
                self._kind("load", "image-archive", str(image.archive), "--name", self._name)

    def reference(self, image: Image) -> str:
        return image.reference

    def _has_begun(self) -> bool:
        """Of one whose creation was killed there are containers, and nothing in them."""
        try:
            self._kind("export", "kubeconfig", *self._named())
        except ClusterError:
            say(
                f"kind cluster {self._name} was begun and never finished: deleted and created again"
            )
            self._kind("delete", "cluster", *self._named())
            return False
        return True

    def _wait_until_ready(self) -> None:
        kubectl = [str(binaries.client() / "kubectl"), "wait", "node", "--all"]
        asked = subprocess.run(
            [*kubectl, "--for=condition=Ready", f"--timeout={WITHIN}"],
            env={**os.environ, "KUBECONFIG": str(self.kubeconfig)},
            capture_output=True,
            text=True,
        )
        if asked.returncode != 0:
            raise ClusterError(
                f"kind cluster {self._name} is not Ready after {WITHIN}: {asked.stderr.strip()}",
                "if its start was interrupted: make cluster-down, and then make cluster",
            )

    def _named(self) -> list[str]:
        return ["--name", self._name, "--kubeconfig", str(self.kubeconfig)]

    def _kind(self, *arguments: str) -> str:
        done = subprocess.run([binaries.kind(), *arguments], capture_output=True, text=True)
        if done.returncode != 0 and not docker_answers():
            raise ClusterError(
                "kind needs a Docker engine, and none answers",
                "start Docker, or unset OUTBOX_CLUSTER for the built-in node",
            )
        if done.returncode != 0:
            raise ClusterError(f"kind {' '.join(arguments)}:\n{done.stderr.strip()}")
        return done.stdout

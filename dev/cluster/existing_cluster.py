"""
A cluster that is there already: KUBECONFIG names it, and we neither start nor stop it.

The project's images go to the registry that OUTBOX_REGISTRY names, or are there already. Chosen
by `clusters`.
"""

import os
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

from . import binaries
from .errors import ClusterError
from .image import Image
from .progress import say


class ExistingCluster:
    def __init__(self, environ: Mapping[str, str]) -> None:
        self.kubeconfig = Path(environ["KUBECONFIG"])
        """Or several, separated by colons, as kubectl and its libraries read them."""
        self._registry = environ.get("OUTBOX_REGISTRY", "").rstrip("/")

    is_there = True

    def prepare(self) -> None:
        """Done by the person who made it."""

    def up(self) -> None:
        if not self.status():
            raise ClusterError(
                f"the cluster of KUBECONFIG={self.kubeconfig} does not answer",
                "check `kubectl get nodes`",
            )

    def down(self, any_owner: bool = False) -> None:
        say("an existing cluster is not ours to take down; it stays as it is")

    def status(self) -> bool:
        readyz = [str(binaries.client() / "kubectl"), "get", "--raw", "/readyz"]
        environ = {**os.environ, "KUBECONFIG": str(self.kubeconfig)}  # the option takes one file
        asked = subprocess.run(readyz, env=environ, capture_output=True, text=True)
        say(f"cluster of {self.kubeconfig}: {asked.stdout.strip() or asked.stderr.strip()}")
        return asked.returncode == 0

    def load(self, images: Iterable[Image]) -> None:
        if not self._registry:
            say("OUTBOX_REGISTRY is not set: the images are taken to be in the cluster's reach")
            return
        from dev.images.build import Image as Built
        from dev.images.build import push
        from dev.images.errors import ImageError

        try:
            push(
                {self.reference(i): Built(i.name, i.reference, i.archive, i.digest) for i in images}
            )
        except ImageError as error:
            raise ClusterError(str(error)) from error

    def reference(self, image: Image) -> str:
        """How pods name it."""
        return reference(image, self._registry)


def reference(image: Image, registry: str) -> str:
    """
    `localhost/outbox-relay:1` in `example.com/team` is `example.com/team/outbox-relay:1-<digest>`.

    By its content: nodes keep what they have pulled by a name, and would run yesterday's code.
    """
    if not registry:
        return image.reference
    content = image.digest.rpartition(":")[2][:12]
    return f"{registry}/{image.reference.removeprefix('localhost/')}-{content}"

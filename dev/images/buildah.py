"""
Building without Docker: Debian's buildah, on a base by mmdebstrap, as root.

With a storage of its own in the cache: the layers of the last builds, and nothing of the machine's
other containers. Chosen by `engines`.
"""

import hashlib
import os
import subprocess
from pathlib import Path

from . import base as debian
from .cache import Image
from .commands import CommandFailed, run
from .errors import ImageError
from .orders import Order, arguments
from .progress import Report, say, step

STORAGE_LIMIT = 8 << 30
"""Bytes of layers. The last builds of all images take half of it; the rest is old ones'."""
TRIES = 3


class Buildah:
    name = "buildah"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._storage = folder / "buildah"
        self._log = folder / "logs" / "base.log"
        # What must not survive a restart of the machine: which layers are mounted.
        run_root = f"/run/outbox-images-{hashlib.sha256(str(folder).encode()).hexdigest()[:8]}"
        driver = os.environ.get("STORAGE_DRIVER", "overlay")
        self._buildah = ["buildah", "--root", str(self._storage), "--runroot", run_root]
        self._buildah += ["--storage-driver", driver]

    def base(self, refresh: bool) -> str:
        if given := os.environ.get("OUTBOX_BASE"):
            return given
        archive = None if refresh else debian.find(self._folder)
        if not archive:
            must_be_root()
            archive = debian.make(self._folder, self._log)
        return f"localhost/outbox-{archive.stem}"

    def build(self, order: Order, report: Report) -> None:
        must_be_root()
        self._import_base(order.base)
        with arguments(order) as common:
            command = [*self._buildah, "build", "--isolation=chroot", "--network=host"]
            self._run([*command, "--layers", "--format=docker", *common], order.log, report)
        # The transport would add to what is there.
        order.archive.unlink(missing_ok=True)
        target = f"docker-archive:{order.archive}:{order.reference}"
        self._run([*self._buildah, "push", order.reference, target], order.log)
        self._prune()

    def push(self, image: Image, target: str, log: Path) -> None:
        must_be_root()
        # As Docker does: a registry on this machine may be without TLS.
        local = target.startswith(("localhost:", "127.0.0.1:"))
        tls = ["--tls-verify=false"] if local else []
        source = f"docker-archive:{image.archive}"
        pulled = run([*self._buildah, "pull", "--quiet", source], log).split()[-1]
        run([*self._buildah, "push", *tls, pulled, f"docker://{target}"], log)

    def _import_base(self, reference: str) -> None:
        if os.environ.get("OUTBOX_BASE") or self._has(reference):
            return
        archive = self._folder / f"{reference.removeprefix('localhost/outbox-')}.tar"
        with step("base: unpacking it", "about 15 s"):
            container = run([*self._buildah, "from", "scratch"], self._log).split()[-1]
            run([*self._buildah, "add", container, str(archive), "/"], self._log)
            run([*self._buildah, "commit", "--rm", container, reference], self._log)

    def _has(self, reference: str) -> bool:
        command = [*self._buildah, "inspect", "--type", "image", reference]
        return subprocess.run(command, capture_output=True).returncode == 0

    def _run(self, command: list[str], log: Path, report: Report | None = None) -> None:
        for attempt in range(1, TRIES + 1):
            try:
                run(command, log, report)
                return
            except CommandFailed as failed:
                # buildah copies itself into memory and seals that, which the kernel refuses while
                # a page of it is still being written: seen about once in fifty steps.
                if "sealing memfd" not in failed.output or attempt == TRIES:
                    raise
                say("buildah could not start a step (a known race): once more")

    def _prune(self) -> None:
        used = sum(path.lstat().st_size for path in self._storage.rglob("*") if path.is_file())
        if used > STORAGE_LIMIT:
            say(f"{used >> 30} GB of old layers: the next build starts from nothing")
            run([*self._buildah, "rmi", "--all", "--force"], self._log)


def must_be_root() -> None:
    if os.geteuid() != 0:
        raise ImageError(
            "without Docker, building images needs root: mmdebstrap and buildah make file systems"
            " with files of other owners",
            "sudo make images, or start a Docker engine",
        )

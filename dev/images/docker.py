"""
Building with Docker, on a pinned Debian from its registry.

As little as possible: it could not be run where it was written. Chosen by `engines`.
"""

import os
import shutil
import subprocess
from pathlib import Path

from .cache import Image
from .commands import run
from .orders import Order, arguments
from .progress import Report

BASE = "debian:12.11-slim"


class Docker:
    name = "Docker"

    def base(self, refresh: bool) -> str:
        return os.environ.get("OUTBOX_BASE") or BASE

    def build(self, order: Order, report: Report) -> None:
        with arguments(order) as common:
            afresh = ["--pull", "--no-cache"] if order.afresh else []
            command = ["docker", "build", "--progress=plain", *afresh, *common]
            run(command, order.log, report, {"DOCKER_BUILDKIT": "1"})
        run(["docker", "save", "--output", str(order.archive), order.reference], order.log)

    def push(self, image: Image, target: str, log: Path) -> None:
        run(["docker", "load", "--input", str(image.archive)], log)
        run(["docker", "tag", image.reference, target], log)
        run(["docker", "push", target], log)


def answers() -> bool:
    if not shutil.which("docker"):
        return False
    return subprocess.run(["docker", "info"], capture_output=True).returncode == 0

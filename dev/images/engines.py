"""Who builds: Docker where an engine answers, otherwise Debian's buildah. Called by `build`."""

import shutil
from pathlib import Path

from . import docker
from .buildah import Buildah
from .errors import ImageError
from .orders import Engine


def choose(folder: Path) -> Engine:
    if docker.answers():
        return docker.Docker()
    missing = [program for program in ("buildah", "mmdebstrap") if not shutil.which(program)]
    if missing:
        raise ImageError(
            f"nothing to build images with: no Docker engine answers, and {' and '.join(missing)}"
            " cannot be found",
            f"start Docker, or: apt-get install {' '.join(missing)} (dev/setup cluster does it)",
        )
    return Buildah(folder)

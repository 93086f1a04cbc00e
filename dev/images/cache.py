"""
Where images are kept: archives that any cluster can load, named by their key.

In ${XDG_CACHE_HOME:-~/.cache}/outbox-operator/images, shared by all clones of the project; one
builds at a time. Called by `build`. Only the newest few of each image are kept.
"""

import fcntl
import json
import os
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from .errors import ImageError
from .progress import say

KEPT = 2
"""Of each image: this one, and the one of the branch that one comes back to."""


@dataclass(frozen=True)
class Image:
    name: str
    reference: str
    archive: Path
    """For `docker load`, `ctr images import`, `kind load image-archive`."""
    digest: str
    """The image's id: other content, other digest."""


class Cache:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def archive(self, name: str, key: str) -> Path:
        return self.folder / f"{name}-{key}.tar"

    def find(self, name: str, key: str, reference: str) -> Image | None:
        archive = self.archive(name, key)
        if not archive.exists():
            return None
        archive.touch()  # `prune` goes by when it was last wanted
        return Image(name, reference, archive, digest(archive))

    @contextmanager
    def new(self, path: Path) -> Iterator[Path]:
        """A file that is whole or not there at all."""
        partial = path.with_name(f"{path.name}.partial")
        partial.unlink(missing_ok=True)
        try:
            yield partial
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)

    def prune(self, name: str) -> None:
        found = sorted(self.folder.glob(f"{name}-*.tar"), key=lambda p: p.stat().st_mtime)
        for old in found[:-KEPT]:
            old.unlink()

    @contextmanager
    def lock(self) -> Iterator[None]:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            file = (self.folder / "lock").open("a+")
        except OSError as error:
            raise ImageError(
                f"the cache: {error}", "set XDG_CACHE_HOME to a folder of yours"
            ) from None
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                say(f"waiting for process {file.read()}, which is building images too")
                fcntl.flock(file, fcntl.LOCK_EX)
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
            yield


def folder() -> Path:
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "outbox-operator" / "images"


def digest(archive: Path) -> str:
    """Of the image's configuration, which names its layers: what Kubernetes shows as imageID."""
    with tarfile.open(archive) as tar:
        manifest = tar.extractfile("manifest.json")
        assert manifest
        config = Path(json.load(manifest)[0]["Config"])
    return f"sha256:{config.stem}"  # <hex>.json, or blobs/sha256/<hex>

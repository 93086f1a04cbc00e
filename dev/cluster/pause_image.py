"""
The image of a pod's first process: one static program, packed as a Docker archive.

Called by `binaries` after the Go build. Packed by hand: it is three JSON files and two tars, and
the node would otherwise need an image builder before its first pod.
"""

import hashlib
import io
import json
import tarfile
from dataclasses import dataclass
from pathlib import Path

REFERENCE = "localhost/outbox-pause:1"


@dataclass(frozen=True)
class PauseImage:
    archive: Path
    name = "pause"
    reference = REFERENCE

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.archive.read_bytes()).hexdigest()


def pack(program: Path, architecture: str, archive: Path) -> None:
    layer = _tar({"pause": program.read_bytes()})
    config = {
        "architecture": architecture,
        "os": "linux",
        "config": {"Entrypoint": ["/pause"], "User": "65535:65535"},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [REFERENCE], "Layers": ["layer.tar"]}]
    files = {
        "layer.tar": layer,
        "config.json": json.dumps(config).encode(),
        "manifest.json": json.dumps(manifest).encode(),
    }
    archive.write_bytes(_tar(files))


def _tar(files: dict[str, bytes]) -> bytes:
    """Without times and owners: the same files give the same image."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            member.mode = 0o755
            tar.addfile(member, io.BytesIO(content))
    return packed.getvalue()

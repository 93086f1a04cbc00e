"""
Images of one static program, packed as Docker archives: `pause` for the node, `probe` for tests.

Called by `binaries` after the Go build. Packed by hand: it is two JSON files and two tars, and
the node would otherwise need an image builder before its first pod.
"""

import hashlib
import io
import json
import tarfile
from dataclasses import dataclass
from pathlib import Path

PAUSE = "localhost/outbox-pause:1"
PROBE = "localhost/outbox-probe:1"


@dataclass(frozen=True)
class TinyImage:
    reference: str
    archive: Path

    @property
    def name(self) -> str:
        return self.archive.stem

    @property
    def digest(self) -> str:
        return f"sha256:{hashlib.sha256(self.archive.read_bytes()).hexdigest()}"


def pack(program: Path, reference: str, architecture: str) -> None:
    """Beside the program, with `.tar` after its name."""
    layer = _tar({program.name: program.read_bytes()})
    config = {
        "architecture": architecture,
        "os": "linux",
        "config": {"Entrypoint": [f"/{program.name}"], "User": "65535:65535"},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [reference], "Layers": ["layer.tar"]}]
    files = {
        "layer.tar": layer,
        "config.json": json.dumps(config).encode(),
        "manifest.json": json.dumps(manifest).encode(),
    }
    program.with_name(f"{program.name}.tar").write_bytes(_tar(files))


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

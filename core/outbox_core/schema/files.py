"""
The files of the schema that this program contains, and what may be changed in them.

Read by `store.migrate`, which applies them, and by `store.doctor`, which compares them.

migrations/NNNN_name.sql
    Tables, types, indexes, views, and who may use them. Each is applied once, in order, and never
    edited after a release.
functions/*.sql, planner.sql, grants.sql, triggers.sql
    The current code. Applied again, after the migrations, whenever its text has changed. Functions
    and triggers are separate parts, because replacing a function locks no table, while replacing a
    trigger blocks everybody who writes to its table.

Rules for a change of the code:

- After a release it needs a new migration, even an empty one that gives the reason: so the version
  number orders the sets, and an older program never restores its own. `released.txt` lists what was
  released, and a test enforces the rule.
- CREATE OR REPLACE refuses a different return type or different argument names, and keeps what is
  no longer in the files. So a numbered migration drops the old function first. If that drops a
  trigger too, `triggers.sql` must change as well: otherwise it is not applied.
- Programs of the previous version use it during a rollout: what they call stays as they know it,
  or the migration has the line `-- serves programs from version N on`.
"""

import hashlib
import re
from importlib import resources
from importlib.resources.abc import Traversable
from typing import NamedTuple

FOLDER = resources.files("outbox_core.schema")


class Migration(NamedTuple):
    version: int
    name: str
    sql: str

    @property
    def serves(self) -> int:
        """The oldest program that works with it, named by its newest migration; 0: all."""
        line = re.search(r"^-- serves programs from version (\d+) on$", self.sql, re.MULTILINE)
        return int(line[1]) if line else 0

    @property
    def checksum(self) -> str:
        return digest(self.sql)


class Code(NamedTuple):
    """A part of the code: applied as a whole, or not at all."""

    name: str
    sql: str

    @property
    def digest(self) -> str:
        return digest(self.sql)


class Release(NamedTuple):
    """The schema as it was released: it must not change under the same version number."""

    version: int
    checksum: str
    """Of the migration with that number."""
    code: dict[str, str]
    """Digests by the names of the parts."""

    def __str__(self) -> str:
        """Its line in `released.txt`."""
        parts = (f"{part}={digest}" for part, digest in self.code.items())
        return " ".join([str(self.version), self.checksum, *parts])


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def migrations() -> list[Migration]:
    """The migrations that this program knows, in order."""
    found = []
    for file in sql_files(FOLDER / "migrations"):
        if match := re.fullmatch(r"(\d{4})_(\w+)\.sql", file.name):
            found.append(Migration(int(match[1]), match[2], file.read_text()))
    return found


def code() -> list[Code]:
    """The parts, in the order in which they are applied."""
    after = [FOLDER / "planner.sql", FOLDER / "grants.sql"]
    functions = [*sql_files(FOLDER / "functions"), *after]
    return [
        Code("functions", "\n".join(f"-- {f.name}\n{f.read_text()}" for f in functions)),
        Code("triggers", (FOLDER / "triggers.sql").read_text()),
    ]


def releases(lines: str | None = None) -> list[Release]:
    """All releases so far, or those in `lines`."""
    found = []
    for line in ((FOLDER / "released.txt").read_text() if lines is None else lines).splitlines():
        if line.strip() and not line.startswith("#"):
            version, checksum, *parts = line.split()
            found.append(Release(int(version), checksum, dict(p.split("=", 1) for p in parts)))
    return found


def this_release() -> Release:
    """The files as they are now; `print` it to get the line for a release."""
    last = migrations()[-1]
    return Release(last.version, last.checksum, {part.name: part.digest for part in code()})


def sql_files(folder: Traversable) -> list[Traversable]:
    return sorted((f for f in folder.iterdir() if f.name.endswith(".sql")), key=lambda f: f.name)


KNOWN = max(m.version for m in migrations())
"""The version of the schema that this program needs."""

"""
Which suites there are: a folder of tests/ is one, and each folder of tests/broker and tests/e2e.

Called by `__main__`. The file system decides, so no test can be left out; what is written here
decides only about their order and about who may run beside whom.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

MINUTES = {
    "e2e/faults": 10.0,
    "broker/kafka": 3.5,
    "broker/nats": 3.0,
    "broker/http": 2.5,
    "broker/rabbitmq": 2.5,
    "broker/sqs": 2.0,
    "broker/redis": 1.5,
    "broker/smtp": 1.0,
    "e2e/relays": 9.0,
    "e2e/replays": 7.0,
    "e2e/live": 2.0,
    "e2e/platform": 6.0,
    "relay": 6.5,
    "store": 5.5,
    "spark": 5.0,
    "crds": 3.0,
    "chaos": 2.5,
    "unit": 2.0,
    "chart": 2.0,
    "conformance": 2.0,
    "dev": 1.0,
}
"""By itself, on 2 cores. The longest begin first, or one of them would run on alone at the end."""

UNKNOWN_MINUTES = 60.0
"""Of a suite that nobody has measured: it begins first."""

DIVIDED = ("broker", "e2e")
"""Folders whose folders are suites: as one they would take longer than all others together."""

ON_A_CLUSTER = ("chart", "crds", "e2e")

MOSTLY_WAIT = ("broker",)
"""For timeouts, leases and servers that are killed or frozen: they use less than a third of a core,
so one of them runs beside the others."""

ALONE = ("e2e/live",)
"""It measures latency: nothing runs beside it, so it comes last."""


@dataclass(frozen=True)
class Suite:
    name: str
    folder: Path

    @property
    def uses_cluster(self) -> bool:
        return self._folder in ON_A_CLUSTER

    @property
    def runs_alone(self) -> bool:
        return self.name in ALONE

    @property
    def is_scenario(self) -> bool:
        """On a cluster with pods."""
        return self._folder == "e2e"

    @property
    def mostly_waits(self) -> bool:
        return self._folder in MOSTLY_WAIT

    @property
    def minutes(self) -> float:
        return MINUTES.get(self.name, UNKNOWN_MINUTES)

    @property
    def _folder(self) -> str:
        """Of tests/."""
        return self.name.partition("/")[0]


def find(tests: Path) -> list[Suite]:
    """The longest first."""
    folders = {_folder_of(file, tests) for file in tests.rglob("test_*.py")}
    found = [Suite(folder.relative_to(tests).as_posix(), folder) for folder in folders]
    return sorted(found, key=lambda suite: (-suite.minutes, suite.name))


def choose(found: Sequence[Suite], names: Iterable[str]) -> list[Suite]:
    """Those of these names, `e2e` for all of its folders; all of them where no name is given."""
    wanted = set(names)
    if unknown := [n for n in sorted(wanted) if not any(_answers_to(s, {n}) for s in found)]:
        known = ", ".join(sorted(suite.name for suite in found))
        raise LookupError(f"no suite is called {', '.join(unknown)}; there are {known}")
    return [suite for suite in found if not wanted or _answers_to(suite, wanted)]


def _answers_to(suite: Suite, names: set[str]) -> bool:
    return not names.isdisjoint({suite.name, suite.name.partition("/")[0]})


def _folder_of(file: Path, tests: Path) -> Path:
    first, *others = file.relative_to(tests).parts
    is_divided = first in DIVIDED and len(others) > 1
    return tests / first / others[0] if is_divided else tests / first

"""
What became of the suites, read from the reports that pytest writes, and the table of it.

Called by `running` for each suite and by `__main__` at the end.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

SLOWEST = 20
"""Tests that are listed below the table."""


@dataclass(frozen=True)
class Timed:
    name: str
    seconds: float
    """With its fixtures: the first one of a server pays for its start."""


@dataclass(frozen=True)
class Result:
    suite: str
    code: int
    """That pytest ended with."""
    seconds: float
    failed: int = 0
    skipped: int = 0
    tests: tuple[Timed, ...] = ()

    @property
    def passed(self) -> bool:
        return self.code == 0

    def __str__(self) -> str:
        verdict = "passed" if self.passed else f"FAILED (pytest ended with {self.code})"
        counted = f"{len(self.tests)} tests, {self.failed} failed, {self.skipped} skipped"
        return f"{self.suite} {verdict}: {counted}, {self.seconds / 60:.1f} min"


def read_result(suite: str, report: Path, code: int, seconds: float) -> Result:
    """A suite that was killed has left no report, and counts as failed."""
    try:
        cases = ElementTree.parse(report).getroot().findall(".//testcase")
    except (FileNotFoundError, ElementTree.ParseError):
        return Result(suite, code or 1, seconds)
    # An error of a fixture at a test's end comes as a second case of the same name.
    failed = {_name(case) for case in cases if _has(case, "failure") or _has(case, "error")}
    skipped = {_name(case) for case in cases if _has(case, "skipped")}
    took: dict[str, float] = {}
    for case in cases:
        took[_name(case)] = took.get(_name(case), 0.0) + float(case.get("time", 0))
    tests = tuple(Timed(name, spent) for name, spent in took.items())
    return Result(suite, code, seconds, len(failed), len(skipped), tests)


def table(results: Sequence[Result], elapsed_seconds: float) -> str:
    rows: list[tuple[str, ...]] = [("suite", "tests", "passed", "failed", "skipped", "minutes")]
    rows += [_row(r.suite, [r], r.seconds) for r in sorted(results, key=lambda r: r.suite)]
    rows += [_row("together", results, elapsed_seconds)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows
    )


def slowest(results: Iterable[Result]) -> str:
    tests = sorted((t for r in results for t in r.tests), key=lambda t: -t.seconds)
    return "\n".join(f"{test.seconds:6.1f} s  {test.name}" for test in tests[:SLOWEST])


def _row(name: str, results: Sequence[Result], seconds: float) -> tuple[str, ...]:
    tests = sum(len(r.tests) for r in results)
    failed, skipped = sum(r.failed for r in results), sum(r.skipped for r in results)
    counts = (tests, tests - failed - skipped, failed, skipped)
    return (name, *map(str, counts), f"{seconds / 60:.1f}")


def _name(case: ElementTree.Element) -> str:
    return f"{case.get('classname')}::{case.get('name')}"


def _has(case: ElementTree.Element, tag: str) -> bool:
    return case.find(tag) is not None

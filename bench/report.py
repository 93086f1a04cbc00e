"""The record of a run: progress while it runs, tables and verdicts at its end, all as JSON."""

import json
import os
import platform
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

from dev.services.kafka import find_libs
from dev.services.postgres import find_binaries

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Verdict:
    what: str
    value: float
    bar: float
    at_least: bool

    @property
    def passed(self) -> bool:
        return self.value >= self.bar if self.at_least else self.value <= self.bar

    def __str__(self) -> str:
        sign = ">=" if self.at_least else "<="
        word = "ok" if self.passed else "MISSED"
        return f"{word:<7}{self.what:<70}{self.value:>9.2f}  {sign} {self.bar:g}"


@dataclass
class Report:
    title: str
    settings: Mapping[str, object]
    runs: list[dict[str, Any]] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)
    extra: dict[str, object] = field(default_factory=dict)
    """Anything else that belongs into the file."""
    _begin: float = field(default_factory=time.monotonic)

    def log(self, text: str) -> None:
        elapsed = int(time.monotonic() - self._begin)
        print(f"[{elapsed // 60:3}:{elapsed % 60:02}] {text}", flush=True)

    def add(
        self,
        scenario: str,
        case: str,
        row: Mapping[str, float],
        details: Mapping[str, object] | None = None,
    ) -> None:
        """`details` are only in the file."""
        run: dict[str, Any] = {"scenario": scenario, "case": case, **row}
        self.runs.append({**run, "details": dict(details)} if details else run)
        self.log(f"{scenario}: {case}: " + ", ".join(f"{k} {v:g}" for k, v in row.items()))

    def median(self, scenario: str, case: str, column: str) -> float | None:
        """None if it was not measured, so that a part of the bench can run alone."""
        values = self._values(scenario, case, column)
        return median(values) if values else None

    def judge(self, what: str, value: float | None, bar: float, *, at_least: bool = False) -> None:
        if value is not None:
            self.verdicts.append(Verdict(what, value, bar, at_least))

    def judge_ratio(
        self,
        what: str,
        ours: float | None,
        other: float | None,
        bar: float,
        *,
        at_least: bool = False,
    ) -> None:
        if ours is not None and other:
            self.judge(what, ours / other, bar, at_least=at_least)

    def print(self) -> None:
        for scenario in dict.fromkeys(run["scenario"] for run in self.runs):
            print(f"\n{scenario} (medians; n = runs)")
            print(table(self._summary(scenario)))
        if self.verdicts:
            print("\nbars")
            print("\n".join(map(str, self.verdicts)))

    def write(self, path: Path | None = None) -> Path:
        """To a file of its own, unless one is given, which is replaced."""
        now = datetime.now(UTC)
        path = path or RESULTS / f"{now:%Y%m%dT%H%M%SZ}-{self.title}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        scenarios = dict.fromkeys(run["scenario"] for run in self.runs)
        content = {
            "at": now.isoformat(timespec="seconds"),
            "title": self.title,
            "machine": machine(),
            "settings": self.settings,
            "medians": {scenario: self._summary(scenario) for scenario in scenarios},
            "verdicts": [{**asdict(v), "passed": v.passed} for v in self.verdicts],
            **self.extra,
            "runs": self.runs,
        }
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(content, indent=2) + "\n")
        partial.rename(path)  # whole or not at all: a run may be interrupted at any time
        return path

    def _values(self, scenario: str, case: str, column: str) -> list[float]:
        return [
            run[column]
            for run in self.runs
            if (run["scenario"], run["case"]) == (scenario, case) and column in run
        ]

    def _summary(self, scenario: str) -> list[dict[str, object]]:
        """A line per case: the median of every column, and the range of the first one."""
        rows: list[dict[str, object]] = []
        runs = [run for run in self.runs if run["scenario"] == scenario]
        for case in dict.fromkeys(run["case"] for run in runs):
            columns = [c for c in next(r for r in runs if r["case"] == case) if c not in NAMES]
            values = {c: self._values(scenario, case, c) for c in columns}
            first = values[columns[0]]
            row: dict[str, object] = {"": case, "n": len(first)}
            if len(first) > 1:
                row[f"{columns[0]}, range"] = f"{min(first):g}-{max(first):g}"
            rows.append({**row, **{c: round(median(v), 2) for c, v in values.items()}})
        return rows


NAMES = ("scenario", "case", "details")


def table(rows: Sequence[Mapping[str, object]]) -> str:
    columns = list(dict.fromkeys(column for row in rows for column in row))
    cells = [columns] + [[_text(row.get(column, "")) for column in columns] for row in rows]
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    lines = []
    for line in cells:
        first, *rest = zip(line, widths, strict=True)
        lines.append("  ".join([first[0].ljust(first[1]), *(c.rjust(w) for c, w in rest)]))
    return "\n".join(lines)


def markdown(rows: Sequence[Mapping[str, object]]) -> str:
    columns = list(dict.fromkeys(column for row in rows for column in row))
    lines = [columns, ["---"] * len(columns)]
    lines += [[_text(row.get(column, "")) for column in columns] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


@cache
def _postgres_version() -> str:
    asked = [str(find_binaries() / "postgres"), "--version"]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()


def machine() -> dict[str, object]:
    """The machine and versions that the figures are from."""
    return {
        "cores": os.cpu_count(),
        "memory_mb": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20,
        "load_at_end": os.getloadavg()[1],
        "kernel": platform.release(),
        "python": platform.python_version(),
        "postgres": _postgres_version(),
        "kafka": find_libs().parent.name,
    }


def _text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:g}" if abs(value) < 1000 else f"{value:.0f}"
    return str(value)

"""
The bars: what the project demands of itself beside its peers, and whether a run has reached it.

A function of a result file's runs: medians, ratios to the best peer of the same run. What a run has
no figures of is shown as such, with the command that measures it.

    python -m bench.bars build/results.json
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, Literal

from bench.report import table

PEERS = ("debezium", "faststream")
MODES = {"unordered": "ours", "ordered": "ours, ordered"}
HOT = "drain, 10 hot keys"
LATENCY = "latency at 500/s"
RATES = "rates"
Run = Mapping[str, Any]


def at_rate(rate: float, system: str) -> str:
    """The case of a system at a rate."""
    return f"{rate:,.0f}/s, {system}"


@dataclass(frozen=True)
class Bar:
    work: str
    unit: str
    scenario: str
    case: str
    column: str
    bar: float
    at_least: bool = False
    others: tuple[str, ...] = ()
    """Cases of the same scenario: the value is the ratio to the best of them."""


@dataclass(frozen=True)
class Judged:
    work: str
    ours: float
    """Itself, with `unit`."""
    unit: str
    other: float | None
    """Of the best of the others."""
    whose: str
    value: float
    """What is compared with the bar: ours, or the ratio."""
    bar: float
    at_least: bool
    passed: bool
    kept_up: bool = True

    def row(self) -> dict[str, object]:
        other = f"{_short(self.other)} ({self.whose})" if self.other is not None else ""
        return {
            "work": self.work,
            "ours": f"{_short(self.ours)} {self.unit}",
            "best other": other,
            "value": f"{self.value:.2f}" if other else _short(self.value),
            "bar": f"{'>=' if self.at_least else '<='} {self.bar:g}",
            "": "ok" if self.passed else "MISSED" if self.kept_up else "MISSED: not kept up",
        }


def _bars() -> list[Bar]:
    bars = []
    for mode, bar in {"unordered": 3.0, "ordered": 2.5}.items():
        work = f"drain, {mode}"
        bars.append(Bar(work, "events/s", "drain", MODES[mode], "warm", bar, True, PEERS))
    ordered = MODES["ordered"]
    bars.append(Bar(HOT, "events/s", HOT, ordered, "warm", 2.2, True, PEERS))
    for mode, case in MODES.items():
        work = f"CPU per event in the drain, warm, {mode}"
        bars.append(Bar(work, "us", "drain", case, "CPU warm", 0.33, others=PEERS))
    for mode, case in MODES.items():
        work = f"of it PostgreSQL, {mode}"
        bars.append(Bar(work, "us", "drain", case, "PG warm", 15))
    for mode, (scenario, case) in _drains().items():
        work = f"WAL per event, claim to finalise, {mode}"
        bars.append(Bar(work, "bytes", scenario, case, "WAL", 250))
    for mode, (p50, p99) in {"unordered": (0.6, 0.7), "ordered": (0.7, 0.8)}.items():
        for name, column, bar in (("p50", "p50 ms", p50), ("p99", "p99", p99)):
            work = f"{LATENCY}, {name}, {mode}"
            bars.append(Bar(work, "ms", LATENCY, MODES[mode], column, bar, others=PEERS))
    for rate in (50, 500, 2000):
        peers = tuple(at_rate(rate, peer) for peer in PEERS)
        for mode, case in MODES.items():
            work = f"CPU per event at {rate:,}/s, {mode}"
            bars.append(Bar(work, "us", RATES, at_rate(rate, case), "CPU", 0.95, others=peers))
    for mode, (scenario, case) in _drains().items():
        work = f"two processes against one, {mode}"
        two = f"{case}, 2 processes"
        bars.append(Bar(work, "events/s", scenario, two, "warm", 1.0, True, (case,)))
    for mode, case in MODES.items():
        bars.append(Bar(f"memory of a relay, {mode}", "MB", "drain", case, "MB", 100))
    return bars


def _drains() -> dict[str, tuple[str, str]]:
    cases = {mode: ("drain", case) for mode, case in MODES.items()}
    return {**cases, "10 hot keys": (HOT, MODES["ordered"])}


BARS = _bars()
ELSEWHERE = {
    "growth, 10M finished events": "python -m bench --only growth --finished 10000000",
    "growth, a reader open for 30 minutes at 500/s": "no command yet",
    "inspection at 10M finished events": "no command yet",
    "bulk replay of 1M published events": "make bench-replay",
}
"""Bars that a run beside the peers has no figures of."""


def judge(runs: Sequence[Run]) -> list[Judged | str]:
    """For each bar a verdict, or its name if the run has not measured it."""
    return [_judge(bar, runs) or bar.work for bar in BARS]


def _judge(bar: Bar, runs: Sequence[Run]) -> Judged | None:
    ours = median_of(runs, bar.scenario, bar.case, bar.column)
    if ours is None:
        return None
    value, other, whose = ours, None, ""
    if bar.others:
        found = {
            case: figure
            for case in bar.others
            if (figure := median_of(runs, bar.scenario, case, bar.column)) is not None
            and kept_up(runs, bar.scenario, case)
        }
        if not found:
            return None
        pick = max if bar.at_least else min
        case = pick(found, key=lambda case: found[case])
        whose, other = case.rpartition("/s, ")[2], found[case]
        if not other:
            return None
        value = ours / other
    passed = value >= bar.bar if bar.at_least else value <= bar.bar
    able = kept_up(runs, bar.scenario, bar.case)
    return Judged(
        *(bar.work, ours, bar.unit, other, whose, value, bar.bar, bar.at_least),
        passed=passed and able,
        kept_up=able,
    )


def median_of(runs: Sequence[Run], scenario: str, case: str, column: str) -> float | None:
    mine = [r for r in runs if (r["scenario"], r["case"]) == (scenario, case) and column in r]
    return median(r[column] for r in mine) if mine else None


def kept_up(runs: Sequence[Run], scenario: str, case: str) -> bool:
    """Where a rate was given: whether the system kept up with it in most of the rounds."""
    return (median_of(runs, scenario, case, "kept up") or 0) > 0 or not any(
        "kept up" in r for r in runs if (r["scenario"], r["case"]) == (scenario, case)
    )


def text(runs: Sequence[Run]) -> str:
    judged = judge(runs)
    rows = [j.row() for j in judged if isinstance(j, Judged)]
    missing = [j for j in judged if isinstance(j, str)]
    lines = [table(rows)] if rows else []
    lines += [f"not measured: {work}" for work in missing]
    lines += [f"not measured here: {work}: {command}" for work, command in ELSEWHERE.items()]
    return "\n".join(lines)


def as_json(runs: Sequence[Run]) -> list[dict[str, object]]:
    state: Literal["ok", "MISSED", "not measured"]
    rows: list[dict[str, object]] = []
    for one in judge(runs):
        if isinstance(one, str):
            state = "not measured"
            rows.append({"work": one, "verdict": state})
        else:
            state = "ok" if one.passed else "MISSED"
            rows.append({**asdict(one), "verdict": state})
    return rows


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:g}"


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.bars",
        description="Judge a result file of bench.peers by the bars that the project has set.",
    )
    parser.add_argument("results", type=Path, help="what bench.peers has written")
    print(text(json.loads(parser.parse_args().results.read_text())["runs"]))


if __name__ == "__main__":
    main()

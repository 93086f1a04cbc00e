"""
A long run as a list of steps: progress and an estimate, what is done already, what has failed.

`bench.peers` defines the steps. The results are written after every step, so that a run which
was interrupted can be continued: a step that was done is known by its name.
"""

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.lab import Lab
from bench.report import Report


@dataclass(frozen=True)
class Measured:
    """A line of a table."""

    scenario: str
    case: str
    row: Mapping[str, float]
    details: Mapping[str, object] | None = None


@dataclass(frozen=True)
class Step:
    kind: str
    """Steps of one kind take about as long as each other."""
    number: int
    """Among those of its kind."""
    guess_seconds: float
    """How long it takes, while none of its kind was done."""
    run: Callable[[Lab], Iterable[Measured]]

    @property
    def name(self) -> str:
        return f"{self.kind}, {self.number}"


@dataclass
class Journal:
    """What was done, in this run and in the one that it continues."""

    seconds: dict[str, float] = field(default_factory=dict)
    """By the name of the step."""
    failed: dict[str, str] = field(default_factory=dict)

    def left(self, steps: Iterable[Step]) -> list[Step]:
        return [step for step in steps if step.name not in self.seconds]

    def estimate(self, steps: Sequence[Step], waiting: Sequence[Step]) -> float:
        """Seconds: as long as others of the kind took, or else the guess, as wrong as others."""
        took: dict[str, list[float]] = {}
        guessed = 0.0
        for step in steps:
            if step.name in self.seconds:
                took.setdefault(step.kind, []).append(self.seconds[step.name])
                guessed += step.guess_seconds
        factor = sum(map(sum, took.values())) / guessed if guessed else 1.0

        def expected(step: Step) -> float:
            known = took.get(step.kind)
            return sum(known) / len(known) if known else step.guess_seconds * factor

        return sum(map(expected, waiting))


class Interrupted(Exception):
    """Somebody has stopped the run."""


def carry_out(
    lab: Lab,
    steps: Sequence[Step],
    journal: Journal,
    report: Report,
    write: Callable[[], object],
) -> None:
    """A step that fails does not stop the others; continuing the run tries it again."""
    waiting = journal.left(steps)
    for n, step in enumerate(waiting):
        left = minutes(journal.estimate(steps, waiting[n:]))
        number = len(steps) - len(waiting) + n + 1
        report.log(f"step {number} of {len(steps)}: {step.name} (about {left} left)")
        begin = time.monotonic()
        try:
            found = list(step.run(lab))
        except KeyboardInterrupt as stop:
            raise Interrupted(step.name) from stop
        except Exception as error:  # what the others have to say is still worth having
            journal.failed[step.name] = repr(error)
            report.log(f"{step.name}: FAILED: {error!r}")
            write()
            continue
        for one in found:
            report.add(one.scenario, one.case, one.row, one.details)
        journal.failed.pop(step.name, None)
        journal.seconds[step.name] = round(time.monotonic() - begin, 1)
        write()


def resume(path: Path, settings: Mapping[str, object]) -> tuple[Journal, list[dict[str, Any]]]:
    """What an interrupted run has measured. It must have had the same settings."""
    found = json.loads(path.read_text())
    same = json.loads(json.dumps(settings))
    if found["settings"] != same:
        differ = [k for k in {*found["settings"], *same} if found["settings"].get(k) != same.get(k)]
        raise ValueError(f"{path} is of a run with other settings: {', '.join(sorted(differ))}")
    journal = Journal(dict(found["journal"]["seconds"]))
    return journal, list(found["runs"])


def minutes(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    whole = round(seconds / 60)
    return f"{whole} min" if whole < 90 else f"{whole // 60} h {whole % 60} min"

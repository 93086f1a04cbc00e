"""A run as steps: in turns, with an estimate, and continued where it was interrupted."""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from bench.contest import SCENARIOS, SYSTEMS, Sizes, Tuned, plan
from bench.lab import Lab
from bench.peers import arguments
from bench.plan import Interrupted, Journal, Measured, Step, carry_out, minutes, resume
from bench.report import Report

NO_LAB = cast(Lab, None)


def step(kind: str, number: int, guess: float = 10.0) -> Step:
    def run(lab: Lab) -> Iterator[Measured]:
        yield Measured(kind, "a case", {"figure": float(number)})

    return Step(kind, number, guess, run)


def failing(error: BaseException) -> Step:
    def run(lab: Lab) -> list[Measured]:
        raise error

    return Step("failing", 1, 10.0, run)


def test_ours_and_the_peers_take_turns_in_every_round() -> None:
    tuned = Tuned(Report("peers", {}), {})
    steps = plan(Sizes(), SCENARIOS, SYSTEMS, True, tuned)
    cases = [s.kind.partition(": ")[2] for s in steps if s.kind.startswith("latency")]
    first = ["ours", "debezium", "ours, ordered", "faststream"]
    assert cases == [*first, *reversed(first), *first]
    names = [s.name for s in steps]
    assert len(names) == len(set(names))
    sweeps = [n for n, s in enumerate(steps) if s.kind.startswith("sweep")]
    assert sweeps == list(range(len(sweeps)))  # before anything that uses their choice


def test_the_best_of_a_sweep_is_used() -> None:
    report = Report("peers", {})
    tuned = Tuned(report, {"debezium": {"drain": "its defaults"}})
    last = tuned.choice("debezium", "drain")
    assert (last.candidate.name, last.why) == ("its defaults", "of the last sweep")
    report.add("sweep, drain", "debezium: large requests", {"warm": 2})
    report.add("sweep, drain", "debezium: batches of 8192", {"warm": 1})
    best = tuned.choice("debezium", "drain")
    assert best.candidate.name == "large requests"
    assert best.why.startswith("best of 2")
    assert tuned.choice("faststream", "drain").why == "built in"


def test_an_estimate_learns_from_what_was_done() -> None:
    steps = [step("a", 1), step("a", 2), step("b", 1, guess=20.0)]
    assert Journal().estimate(steps, steps) == 40.0
    # Twice as long as guessed: so will be what was not done yet.
    assert Journal({"a, 1": 20.0}).estimate(steps, steps[1:]) == 20.0 + 40.0
    assert Journal({s.name: 1.0 for s in steps}).estimate(steps, []) == 0.0
    assert (minutes(40), minutes(600), minutes(6000)) == ("40 s", "10 min", "1 h 40 min")


def test_a_step_that_fails_does_not_stop_the_others() -> None:
    report, journal = Report("peers", {}), Journal()
    steps = [failing(RuntimeError("gone")), step("a", 1)]
    carry_out(NO_LAB, steps, journal, report, lambda: None)
    assert [s.name for s in journal.left(steps)] == ["failing, 1"]
    assert "gone" in journal.failed["failing, 1"]
    assert len(report.runs) == 1


def test_an_interrupted_run_keeps_its_results_and_continues(tmp_path: Path) -> None:
    path, settings = tmp_path / "results.json", {"events": 1, "rates": (1.0, 2.0)}
    report, journal = Report("peers", settings), Journal()

    def write() -> None:
        seconds = {"seconds": journal.seconds}
        path.write_text(json.dumps({"settings": settings, "runs": report.runs, "journal": seconds}))

    steps = [step("a", 1), failing(KeyboardInterrupt()), step("a", 2)]
    with pytest.raises(Interrupted):
        carry_out(NO_LAB, steps, journal, report, write)
    again, runs = resume(path, settings)
    assert [s.name for s in again.left(steps)] == ["failing, 1", "a, 2"]
    assert [run["figure"] for run in runs] == [1.0]
    with pytest.raises(ValueError, match="other settings: events"):
        resume(path, {**settings, "events": 2})


def test_help_explains_every_option() -> None:
    actions = arguments()._actions
    assert len(actions) > 10
    assert all(action.help for action in actions)
    assert isinstance(arguments().parse_args([]), argparse.Namespace)

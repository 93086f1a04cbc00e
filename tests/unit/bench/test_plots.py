"""Plots: every system and axis is in them, they are small, and the same results give the same."""

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from bench.bars import at_rate
from bench.plots import PLOTS, SYSTEMS, draw
from bench.scenarios.steady import QUANTILES

ROOT = Path(__file__).resolve().parents[3]
AXES = {
    "throughput": ["events per second", "backlog", "backlog, 10 hot keys", "burst"],
    "latency": ["percentile of events", "milliseconds", "p50", "p99", "p99.9"],
    "cpu-over-rate": ["events per second", "microseconds per event", "10", "10,000"],
}
LARGEST_BYTES = 60_000


def made_up() -> list[dict[str, Any]]:
    """The figures of no machine."""
    runs: list[dict[str, Any]] = []
    for n, case in enumerate(SYSTEMS, 1):
        for scenario in ("drain", "drain, 10 hot keys"):
            runs.append({"scenario": scenario, "case": case, "warm": 40_000 / n})
        runs.append({"scenario": "burst", "case": case, "events/s": 30_000 / n})
        latency = [-0.2, *(n * q / (1.01 - q) for q in QUANTILES[1:])]
        details: dict[str, Any] = {"quantiles": list(QUANTILES), "latency ms": latency}
        runs.append({"scenario": "latency at 500/s", "case": case, "details": details})
        for rate in (10, 500, 10_000):
            row = {"CPU": n * 5000 / rate**0.5, "kept up": 1, "details": {"rate": rate}}
            runs.append({"scenario": "rates", "case": at_rate(rate, case), **row})
    return runs


def texts(content: bytes) -> list[str]:
    return ["".join(node.itertext()) for node in ElementTree.fromstring(content).iter()]


@pytest.mark.parametrize("name", PLOTS)
def test_a_plot_has_every_system_and_every_axis(name: str) -> None:
    content = PLOTS[name](made_up())
    assert content is not None
    shown = texts(content)
    for wanted in (*SYSTEMS.values(), *AXES[name]):
        assert wanted in shown
    series = content.count(b"serie-")
    assert series >= len(SYSTEMS)


@pytest.mark.parametrize("name", PLOTS)
def test_a_plot_is_small_dark_on_demand_and_runs_no_script(name: str) -> None:
    content = PLOTS[name](made_up())
    assert content is not None
    assert len(content) < LARGEST_BYTES
    assert b"prefers-color-scheme:dark" in content.replace(b": ", b":")
    for word in (b"<script", b"http://pygal", b"https://"):
        assert word not in content


def test_the_same_results_give_the_same_bytes(tmp_path: Path) -> None:
    results = tmp_path / "results.json"
    results.write_text(json.dumps({"runs": made_up()}))
    drawn = []
    for seed in ("1", "2"):  # of hashes, by which Python orders sets
        folder = tmp_path / seed
        command = [sys.executable, "-m", "bench.plots", str(results), "--into", str(folder)]
        subprocess.run(command, check=True, cwd=ROOT, env={**os.environ, "PYTHONHASHSEED": seed})
        drawn.append({path.name: path.read_bytes() for path in folder.iterdir()})
    assert sorted(drawn[0]) == sorted(f"{name}.svg" for name in PLOTS)
    assert all(one == other for one, other in pairwise(drawn))


def test_what_was_not_measured_is_not_drawn(tmp_path: Path) -> None:
    only = [run for run in made_up() if run["scenario"] == "drain"]
    assert [path.name for path in draw(only, tmp_path)] == ["throughput.svg"]
    assert draw([], tmp_path / "none") == []


def test_a_rate_that_a_system_did_not_keep_up_with_is_left_out() -> None:
    runs = made_up()
    slow = at_rate(10_000, "faststream")
    runs = [{**run, "kept up": 0} if run["case"] == slow else run for run in runs]
    before, after = (PLOTS["cpu-over-rate"](some) for some in (made_up(), runs))
    assert before is not None
    assert after is not None
    assert after.count(b"<circle") == before.count(b"<circle") - 1

"""Tuning: enough is tried of every peer, and the best is taken for each kind of work."""

from pathlib import Path

import pytest

from bench.tuning import (
    CANDIDATES,
    PEERS,
    SWEEPS,
    Candidate,
    Choice,
    Peer,
    Sweep,
    Work,
    choose,
    lines,
    named,
    remember,
    remembered,
)


@pytest.mark.parametrize("peer", PEERS)
@pytest.mark.parametrize("sweep", SWEEPS)
def test_a_sweep_tries_at_least_four_different_settings(peer: Peer, sweep: Sweep) -> None:
    tried = CANDIDATES[peer][sweep]
    assert len({c.name for c in tried}) == len(tried) >= 4
    assert len({repr((c.settings, c.java)) for c in tried}) == len(tried)


STEADY = {
    "quick": {"p50 ms": 4.0, "p99": 9.0, "CPU": 900.0, "missing": 0.0},
    "cheap": {"p50 ms": 20.0, "p99": 60.0, "CPU": 500.0, "missing": 0.0},
    "too late": {"p50 ms": 250.0, "p99": 500.0, "CPU": 300.0, "missing": 0.0},
    "lossy": {"p50 ms": 20.0, "p99": 60.0, "CPU": 100.0, "missing": 3.0},
}


def test_the_best_differs_by_the_work() -> None:
    assert choose("drain", {"a": {"warm": 1.0}, "b": {"warm": 2.0}}) == "b"
    assert choose("latency", STEADY) == "quick"
    assert choose("cpu", STEADY) == "cheap"


def test_if_all_are_late_the_quickest_is_taken_for_cpu() -> None:
    late = {name: {**row, "p99": row["p99"] + 1000} for name, row in STEADY.items()}
    assert choose("cpu", late) == "quick"


def test_without_a_sweep_the_last_choice_is_taken(tmp_path: Path) -> None:
    last = CANDIDATES["debezium"]["drain"][2]
    path = tmp_path / "build" / "tuning.json"
    assert remembered(path) == {}
    remember({"debezium": {"drain": Choice(last, "best of 6")}}, path)
    assert named("debezium", "drain", remembered(path)["debezium"]["drain"]) is last


def test_a_choice_that_is_gone_is_forgotten() -> None:
    work: Work = "latency"
    assert named("faststream", work, "of old") is CANDIDATES["faststream"]["steady"][0]
    assert choose(work, {}) is None


def test_a_reader_sees_what_was_chosen_and_why() -> None:
    chosen = Candidate("large", {"debezium.source.max.batch.size": "8192"}, ("-Xmx1g",))
    shown = "\n".join(lines({"debezium": {"drain": Choice(chosen, "best of 6")}}))
    for part in ("debezium, drain: large", "best of 6", "max.batch.size", "-Xmx1g"):
        assert part in shown

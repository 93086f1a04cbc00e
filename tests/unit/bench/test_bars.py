"""The bars: medians of a run, ratios to its best peer, and what it has not measured."""

from typing import Any

from bench.bars import BARS, Judged, as_json, at_rate, judge, text


def run(scenario: str, case: str, **columns: float) -> dict[str, Any]:
    return {
        "scenario": scenario,
        "case": case,
        **{k.replace("_", " "): v for k, v in columns.items()},
    }


def verdict(work: str, runs: list[dict[str, Any]]) -> Judged:
    (found,) = [j for j in judge(runs) if isinstance(j, Judged) and j.work == work]
    return found


def test_a_ratio_is_of_medians_and_to_the_best_peer() -> None:
    runs = [
        *(run("drain", "ours", warm=rate) for rate in (10, 60, 62)),
        *(run("drain", "debezium", warm=rate) for rate in (20, 19, 99)),
        run("drain", "faststream", warm=2),
    ]
    found = verdict("drain, unordered", runs)
    assert (found.ours, found.other, found.whose) == (60, 20, "debezium")
    assert found.value == 3.0
    assert found.passed


def test_where_less_is_better_the_best_peer_has_the_least() -> None:
    runs = [
        run("latency at 500/s", "ours", p99=8.0),
        run("latency at 500/s", "debezium", p99=20.0),
        run("latency at 500/s", "faststream", p99=10.0),
    ]
    found = verdict("latency at 500/s, p99, unordered", runs)
    assert found.whose == "faststream"
    assert not found.passed  # 0.8, and the bar is 0.7


def test_a_peer_that_does_not_keep_up_is_no_measure() -> None:
    runs = [
        run("rates", at_rate(2000, "ours"), CPU=90, kept_up=1),
        run("rates", at_rate(2000, "debezium"), CPU=100, kept_up=1),
        run("rates", at_rate(2000, "faststream"), CPU=10, kept_up=0),
    ]
    found = verdict("CPU per event at 2,000/s, unordered", runs)
    assert (found.whose, found.passed) == ("debezium", True)


def test_ours_misses_a_bar_at_a_rate_that_it_does_not_keep_up_with() -> None:
    runs = [
        run("rates", at_rate(2000, "ours"), CPU=10, kept_up=0),
        run("rates", at_rate(2000, "debezium"), CPU=100, kept_up=1),
    ]
    found = verdict("CPU per event at 2,000/s, unordered", runs)
    assert not found.passed
    assert found.row()[""] == "MISSED: not kept up"


def test_two_processes_are_compared_with_one() -> None:
    runs = [run("drain", "ours", warm=100), run("drain", "ours, 2 processes", warm=99)]
    found = verdict("two processes against one, unordered", runs)
    assert (found.whose, found.passed) == ("ours", False)


def test_a_bar_without_figures_is_shown_as_not_measured() -> None:
    shown = text([run("drain", "ours", warm=1)])
    assert all(f"not measured: {bar.work}" in shown for bar in BARS)
    assert "bulk replay" in shown
    assert {row["verdict"] for row in as_json([])} == {"not measured"}

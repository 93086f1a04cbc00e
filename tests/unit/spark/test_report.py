"""What a pipeline reports while it works."""

from datetime import UTC, datetime
from typing import Any

import pytest

from outbox_core.contract.replay import ReplayReport
from outbox_spark.replay import first_report
from outbox_spark.report import LiveReport, Speed, seconds_left

COUNTED = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
OBSERVED = datetime(2026, 3, 1, 12, 0, 5, tzinfo=UTC)


def test_the_speed_is_not_known_at_the_first_reading() -> None:
    assert Speed().seen(100.0, 5000) == 0


def test_what_an_earlier_attempt_did_is_no_speed_of_ours() -> None:
    speed = Speed()
    speed.seen(100.0, 5000)
    assert speed.seen(102.0, 7000) == 1000


def test_the_speed_is_that_of_late() -> None:
    speed = Speed()
    for second in range(60):
        speed.seen(second, 1000 * second)
    for second in range(60, 90):
        found = speed.seen(second, 59_000)
    assert found == 0


def test_the_time_until_something_moves_at_all_does_not_count() -> None:
    speed = Speed()
    for second in range(12):
        assert speed.seen(second, 5000) == 0
    assert speed.seen(12.0, 5400) == 400


def test_readings_that_are_far_apart_give_a_speed_too() -> None:
    speed = Speed()
    speed.seen(0.0, 0)
    speed.seen(100.0, 100)
    assert speed.seen(200.0, 400) == pytest.approx(3)


def test_how_long_it_takes_is_unknown_while_nothing_moves() -> None:
    assert seconds_left(100, 0.0) is None
    assert seconds_left(100, 50.0) == 2
    assert seconds_left(0, 0.0) == 0


def test_every_report_is_kept_for_the_case_that_the_process_is_killed() -> None:
    kept: list[ReplayReport] = []
    live = LiveReport(first_report("shop/replay@12345678"), kept.append)
    live.update(stage="Running", matched=10)
    live.update(replayed=5)
    assert [(report.stage, report.replayed) for report in kept] == [("Running", 0), ("Running", 5)]
    assert kept[-1] == live.current()


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"stage": "Running"}, OBSERVED),  # of a driver that does not report when it counted
        ({"stage": "Running", "counted_at": COUNTED}, COUNTED),
        ({"stage": "Stopped", "counted_at": COUNTED}, COUNTED),
        ({"stage": "Stopped", "counted_at": COUNTED, "final": True}, None),
        ({"stage": "Succeeded", "counted_at": COUNTED}, None),
    ],
)
def test_figures_bear_their_time_until_they_are_final(
    fields: dict[str, Any], expected: datetime | None
) -> None:
    changes = {"observed_at": OBSERVED, **fields}
    assert first_report("x").model_copy(update=changes).figures_as_of == expected


def test_the_report_keeps_what_is_not_updated() -> None:
    live = LiveReport(first_report("shop/replay@12345678"))
    before = live.current()
    live.update(stage="Running", matched=10)
    live.update(replayed=5)
    report = live.current()
    assert (report.id, report.stage, report.matched, report.replayed) == (
        *("shop/replay@12345678", "Running"),
        *(10, 5),
    )
    assert report.observed_at >= before.observed_at
    assert before.stage == "Starting"

"""A bulk replay's driver as its users see it: what it brings back, its port, its end."""

import sys

import pytest
from prometheus_client.parser import text_string_to_metric_families

from dev.services import wait_until
from fixtures.outbox import Outbox
from fixtures.replays import StartReplay, deliveries, make_dead
from outbox_core.contract.replay import Exit, ReplayReport

pytestmark = [pytest.mark.pg, pytest.mark.timeout(300)]

FAST = {"eventsPerSecond": 1_000_000}


def test_a_dry_run_shows_what_would_happen_and_changes_nothing(
    outbox: Outbox, start_replay: StartReplay
) -> None:
    make_dead(outbox, outbox.register(), 300)
    before = deliveries(outbox)
    replay = start_replay(outbox.dsn, dryRun=True, rate={"eventsPerSecond": 100})
    assert replay.wait(120) == 0
    report = replay.final_report
    assert (report.stage, report.matched, report.replayed) == ("Succeeded", 300, 0)
    assert report.preview is not None
    assert report.preview.by_type[0].count == 300
    assert report.preview.keys == 7
    assert report.preview.estimated_seconds == 3
    assert deliveries(outbox) == before
    assert outbox.value("SELECT count(*) FROM outbox.replay") == 0
    assert not replay.happened("engine-started")  # that would take longer than all the rest


def test_what_is_dead_comes_back_once(outbox: Outbox, start_replay: StartReplay) -> None:
    relay = outbox.register()
    make_dead(outbox, relay, 5000)
    outbox.emit("order.paid")  # waits already: none of ours
    replay = start_replay(outbox.dsn, rate=FAST, requestedBy="ann@example.com")
    assert replay.wait(180) == 0
    report = replay.final_report
    assert (report.stage, report.matched, report.replayed) == ("Succeeded", 5000, 5000)
    assert report.skipped == 0
    assert outbox.states() == {"PENDING": 5001}
    assert (
        outbox.value("SELECT count(*) FROM outbox.deliveries WHERE replay_id IS NOT NULL") == 5000
    )
    assert outbox.sql("SELECT action, actor FROM outbox.audit ORDER BY id") == [
        ("replay-begin", "ann@example.com"),
        ("replay-end", "ann@example.com"),
    ]
    assert len(replay.happened("task-done")) == 2
    again = start_replay(outbox.dsn, rate=FAST)
    assert again.wait(120) == 0
    assert again.final_report.replayed == 5000
    assert not again.happened("engine-started")


def test_a_replay_of_nothing_succeeds_without_spark(
    outbox: Outbox, start_replay: StartReplay
) -> None:
    outbox.register()
    replay = start_replay(outbox.dsn)
    assert replay.wait(120) == 0
    assert (replay.final_report.stage, replay.final_report.matched) == ("Succeeded", 0)
    assert not replay.happened("engine-started")


def test_the_port_shows_the_progress(outbox: Outbox, start_replay: StartReplay) -> None:
    make_dead(outbox, outbox.register(), 20_000)
    # The relay is not running, so all that comes back waits: that must not slow this one down.
    replay = start_replay(outbox.dsn, rate={"eventsPerSecond": 400, "yieldToLive": False})
    wait_until(lambda: replay.status()["replayed"] > 400, 120, "it has begun")
    assert replay.get("/healthz") == (200, "alive\n")
    assert replay.get("/readyz") == (200, "ready\n")
    report = ReplayReport.read(replay.get("/status")[1])
    assert report is not None
    assert (report.stage, report.matched, report.pace) == ("Running", 20_000, 400)
    assert 0 < report.replayed < 20_000
    wait_until(lambda: replay.status().get("secondsLeft"), 30, "it reports its speed")
    shown = replay.status()
    # Never more than is allowed, but for a tenth of a second that is made up for; how much less,
    # a busy machine decides. What is left is reckoned from that speed.
    assert shown["rate"] < 500
    left = 20_000 - shown["replayed"] - shown["skipped"]
    assert shown["secondsLeft"] == pytest.approx(left / shown["rate"], rel=0.02)
    samples = {
        sample.name: sample.value
        for family in text_string_to_metric_families(replay.get("/metrics")[1])
        for sample in family.samples
    }
    assert samples["outbox_replay_matched"] == 20_000
    assert 0 < samples["outbox_replay_replayed"] < 20_000
    assert samples["outbox_replay_pace"] == 400
    assert replay.happened("progress")
    assert replay.stop(30) == 143


def test_it_slows_down_while_events_wait_and_reports_it(
    outbox: Outbox, start_replay: StartReplay
) -> None:
    make_dead(outbox, outbox.register(), 3000)
    replay = start_replay(outbox.dsn, rate={"eventsPerSecond": 300})  # and nothing publishes
    slow = wait_until(
        lambda: (status := replay.status())["message"].startswith("slowed down") and status,
        120,
        "it slows down",
    )
    assert slow["pace"] < 300
    wait_until(lambda: replay.status()["pace"] == 3, 30, "it crawls")
    assert replay.stop() == 143


def test_if_spark_fails_it_is_reported_and_another_attempt_may_succeed(
    outbox: Outbox, start_replay: StartReplay
) -> None:
    make_dead(outbox, outbox.register(), 10)
    nowhere = {"spark.pyspark.python": "/no/python", "spark.pyspark.driver.python": sys.executable}
    replay = start_replay(outbox.dsn, conf=nowhere)
    assert replay.wait(120) == Exit.AGAIN
    report = replay.final_report
    assert (report.stage, report.reason) == ("Failed", "EngineFailed")
    assert "/no/python" in report.message
    assert outbox.states() == {"DEAD": 10}
    assert outbox.value("SELECT stopped_at IS NOT NULL FROM outbox.replay")
    last = "SELECT action, after->>'state' FROM outbox.audit ORDER BY id DESC LIMIT 1"
    ((action, state),) = outbox.sql(last)
    assert action == "replay-stop"
    assert state.startswith("0 replayed, 0 skipped: EngineFailed: ")
    again = start_replay(outbox.dsn)
    assert again.wait(120) == Exit.DONE
    assert outbox.states() == {"PENDING": 10}

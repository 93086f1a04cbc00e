"""A paused relay: nothing goes out, everything is kept and seen, and it goes on where it was."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from dev.services import Postgres, wait_until
from fixtures.cli import Cli
from fixtures.losing import LosingProxy, Loss, Plan, Point
from fixtures.made_settings import relay_settings
from fixtures.outbox import Outbox
from fixtures.relays import StartRelay
from fixtures.topics import Consume
from outbox_core.contract.report import Report
from outbox_core.errors import StoreUnavailable
from outbox_core.observe.health import Health
from outbox_core.observe.metrics import RelayMetrics
from outbox_relay.worker.breaker import Breaker
from outbox_relay.worker.context import Context
from outbox_relay.worker.paused import PausedPublisher
from outbox_relay.worker.polling import Crew
from outbox_relay.worker.reporting import FRESH_SECONDS, Reporter

pytestmark = [pytest.mark.pg, pytest.mark.kafka]

NOBODY: dict[str, Any] = {
    "bootstrapServers": "127.0.0.1:1",
    "topic": "t",
    "deliveryTimeout": "1s",
}
"""A paused relay asks no broker for anything."""


def registration(outbox: Outbox) -> list[tuple[Any, ...]]:
    return outbox.sql("SELECT * FROM outbox.relay ORDER BY id")


@pytest.mark.parametrize("ordering", ["None", "Key"])
def test_it_watches_and_touches_nothing(
    outbox: Outbox, start_relay: StartRelay, ordering: str
) -> None:
    relay = outbox.register(ordering=ordering)
    outbox.emit(ordering_key="k")
    outbox.emit(ordering_key="k")
    before = registration(outbox)
    pod = start_relay(outbox.dsn, ordering=ordering, paused=True, kafka=NOBODY, lease="60s")
    wait_until(lambda: pod.get("/readyz")[0] == 200, 30, "ready")
    outbox.emit(ordering_key="k")
    wait_until(lambda: pod.status()["backlog"]["pending"] == 3, 20, "it sees what comes")
    pod.wait_report()
    report = pod.status()
    assert report["paused"] is True
    assert report["ready"] is True
    assert report["lanes"] == 0
    assert report["busy"] is None
    assert report["backlog"]["oldestPendingSeconds"] > 0
    assert "\noutbox_relay_paused 1.0\n" in pod.get("/metrics")[1]
    assert '\noutbox_backlog{state="pending"} 3.0\n' in pod.get("/metrics")[1]
    assert registration(outbox) == before  # events go on being kept for it
    assert outbox.states("relay") == {"PENDING": 3}
    assert (
        outbox.value("SELECT sum(attempts) FROM outbox.deliveries WHERE relay_id = %s", relay) == 0
    )
    assert outbox.value("SELECT count(*) FROM outbox.holder") == 0
    (said,) = pod.happened("paused")
    assert "set paused: false" in said["message"]
    assert pod.stop() == 0


def test_claims_of_a_relay_that_died_are_left_until_it_is_resumed(
    outbox: Outbox,
    start_relay: StartRelay,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    relay = outbox.register()
    outbox.emit()
    outbox.claim(relay, owner="pod-dead", lease=timedelta(seconds=-1))
    pod = start_relay(outbox.dsn, paused=True, kafka=NOBODY, lease="2s")
    wait_until(lambda: pod.get("/readyz")[0] == 200, 30, "ready")
    pod.wait_report(seconds=3)  # longer than the lease: one that is not paused would have reaped
    assert pod.status()["backlog"]["claimed"] == 1
    monkeypatch.setenv("OUTBOX_DSN", outbox.dsn)
    said = Cli(capsys)("reap", "--config", pod.config)
    assert "is paused: nothing was taken back" in said
    assert outbox.states() == {"CLAIMED": 1}


def test_paused_and_resumed_under_load_nothing_is_lost_or_goes_out_meanwhile(
    outbox: Outbox, topic: str, start_relay: StartRelay, consume: Consume
) -> None:
    running = start_relay(outbox.dsn, "running", kafka={"topic": topic}, batchSize=50)
    wait_until(lambda: running.get("/readyz")[0] == 200, 30, "ready")
    for _ in range(500):
        outbox.emit()
    wait_until(lambda: outbox.states().get("PUBLISHED", 0) >= 50, 30, "it publishes")
    watching = start_relay(outbox.dsn, "watching", kafka={"topic": topic}, paused=True)
    wait_until(lambda: watching.get("/readyz")[0] == 200, 30, "it watches")
    assert running.stop() == 0
    out = outbox.states().get("PUBLISHED", 0)
    for _ in range(100):
        outbox.emit()
    assert outbox.states() == {"PUBLISHED": out, "PENDING": 600 - out}
    wait_until(
        lambda: watching.status()["backlog"]["pending"] == 600 - out, 20, "the backlog is seen"
    )
    resumed = start_relay(outbox.dsn, "resumed", kafka={"topic": topic})
    assert watching.stop() == 0
    wait_until(lambda: outbox.states() == {"PUBLISHED": 600}, 40, "all published")
    assert len(consume(topic, 600)) == 600
    assert resumed.stop() == 0


def test_ready_means_that_the_store_answers(
    outbox: Outbox, postgres: Postgres, start_relay: StartRelay
) -> None:
    pod = start_relay(outbox.dsn, paused=True, kafka=NOBODY)
    wait_until(lambda: pod.get("/readyz")[0] == 200, 30, "ready")
    postgres.stop()
    try:
        wait_until(lambda: pod.get("/readyz")[0] == 503, 30, "it notices")
        report = pod.status()
        assert report["reasons"]["status"] == "StoreUnreachable"
        assert report["backlog"] is None
        assert pod.get("/healthz")[0] == 200
    finally:
        postgres.start()
    wait_until(lambda: pod.get("/readyz")[0] == 200, 30, "it recovers")
    assert pod.stop() == 0


class Asked:
    """A paused relay's report, asked for by hand, at the time that the test says."""

    def __init__(self, dsn: str, relay: int, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("OUTBOX_DSN", dsn)
        self.now = 100.0
        settings = relay_settings(paused=True)
        self.context = Context(
            settings=settings,
            relay=relay,
            publisher=PausedPublisher(),
            policy=settings.retry.policy(),
            crew=Crew(settings.workers, -1),
            breaker=Breaker(lambda: self.now),
            health=Health(),
            metrics=RelayMetrics(),
            clock=lambda: self.now,
        )
        self.context.health.clear("start")
        self._reporter = Reporter(self.context)

    def report(self, later: float = 0.0) -> Report:
        self.now += later
        return self._reporter.report()

    def close(self) -> None:
        self._reporter.close()


@pytest.fixture
def losing(outbox: Outbox) -> Iterator[LosingProxy]:
    """Loses the store after a report has read the backlog, and before it has read the rest."""
    begins = Point(lambda trip: "enable_seqscan" in trip.text, Loss.CUT_BEFORE, nth=2)
    with LosingProxy(outbox.dsn, Plan([begins])) as proxy:
        yield proxy


def test_a_report_that_loses_the_store_halfway_has_no_backlog(
    outbox: Outbox, losing: LosingProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Asked(losing.dsn, outbox.register(), monkeypatch)
    outbox.emit()
    report = asked.report()
    assert losing.plan.struck.is_set()
    assert (report.ready, report.reasons) == (False, {"status": "StoreUnreachable"})
    assert report.backlog is None
    report = asked.report(later=FRESH_SECONDS)
    assert (report.ready, report.reasons) == (True, {})
    assert report.backlog is not None
    assert report.backlog.pending == 1
    asked.close()


def test_a_report_shows_a_trouble_as_soon_as_readiness_does(
    outbox: Outbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Asked(outbox.dsn, outbox.register(), monkeypatch)
    before = asked.report()
    assert before.ready
    asked.context.health.trouble("store", StoreUnavailable("gone"))
    report = asked.report()
    assert (report.ready, report.troubles) == (False, {"store": "gone"})
    assert report.reasons == {"store": "StoreUnreachable"}
    assert report.observed_at == before.observed_at  # the store was not asked again
    asked.context.health.clear("store")
    assert asked.report() == before
    asked.close()


def test_a_relay_that_is_created_paused_is_kept_its_events(
    outbox: Outbox, start_relay: StartRelay
) -> None:
    outbox.register("other")  # or the events would count as wanted by nobody, and wait anyway
    pod = start_relay(outbox.dsn, paused=True, kafka=NOBODY)
    wait_until(lambda: pod.get("/readyz")[0] == 200, 30, "ready")
    outbox.emit()
    assert outbox.states("relay") == {"PENDING": 1}


def test_what_is_wrong_with_the_settings_is_heard_before_it_is_resumed(
    outbox: Outbox, start_relay: StartRelay
) -> None:
    pod = start_relay(outbox.dsn, paused=True, kafka={**NOBODY, "topic": "{colour}"})
    assert pod.wait(30) == 1
    assert "no field {colour}" in pod.log.read_text()

"""The report of a process: its rates, and what its workers did with their time."""

import json

import pytest

from fixtures.made_settings import relay_settings, retry_policy
from fixtures.relays import Broker
from outbox_core.contract.report import Report
from outbox_core.observe.health import Health
from outbox_core.observe.metrics import RelayMetrics
from outbox_relay.worker.breaker import Breaker
from outbox_relay.worker.context import Context
from outbox_relay.worker.polling import Crew
from outbox_relay.worker.reporting import Reporter


class Process:
    """One that has registered, whose store is away, and whose clock the test turns."""

    def __init__(self, **settings: object) -> None:
        self.now = 100.0
        self.metrics = RelayMetrics()
        self.context = Context(
            settings=relay_settings(store={"dsn": {"env": "NO_SUCH_DSN"}}, **settings),
            relay=1,
            publisher=Broker(),
            policy=retry_policy(),
            crew=Crew(1, -1),
            breaker=Breaker(lambda: self.now),
            health=Health(),
            metrics=self.metrics,
            clock=lambda: self.now,
        )
        self._reporter = Reporter(self.context)

    def worked(self, seconds: float, store: float = 0, publish: float = 0, events: int = 0) -> None:
        self.now += seconds
        self.metrics.stage.labels("store").observe(store)
        self.metrics.stage.labels("publish").observe(publish)
        self.metrics.published.inc(events)

    def report(self) -> Report:
        return self._reporter.report()


def shares(report: Report) -> tuple[float, float]:
    assert report.busy is not None
    return report.busy.store, report.busy.publish


def test_shares_are_of_all_workers_time() -> None:
    process = Process(workers=2)
    process.worked(10, store=15, publish=5, events=1000)
    report = process.report()
    assert shares(report) == (0.75, 0.25)
    assert (report.rates.published, report.rates.seconds) == (100, 10)
    assert report.busy is not None
    assert report.busy.workers == 2


def test_they_are_of_the_last_minute() -> None:
    process = Process(workers=1)
    for _ in range(12):
        process.worked(10, store=9, publish=1, events=100)
        process.report()
    for _ in range(6):
        process.worked(10, store=1, publish=2, events=10)
        process.report()
    report = process.report()
    assert shares(report) == (0.1, 0.2)
    assert (report.rates.published, report.rates.seconds) == (1, 60)


def test_an_idle_process_is_not_busy_from_its_first_report_on() -> None:
    process = Process()
    assert shares(process.report()) == (0, 0)
    process.now += 5
    assert shares(process.report()) == (0, 0)


def test_a_stage_that_began_before_the_minute_is_no_more_than_all_of_it() -> None:
    process = Process(workers=1)
    process.worked(10, publish=60)
    assert shares(process.report()) == (0, 1)


def test_a_paused_process_has_no_workers_to_be_busy() -> None:
    report = Process(paused=True).report()
    assert (report.paused, report.busy) == (True, None)


def test_troubles_have_reasons() -> None:
    process = Process()
    process.context.health.clear("start")
    report = process.report()
    assert report.backlog is None
    assert report.reasons == {"status": "StoreUnreachable"}
    assert set(report.troubles) == set(report.reasons)
    assert "NO_SUCH_DSN is not set" in report.troubles["status"]


@pytest.mark.parametrize("gone", ["paused", "reasons", "busy"])
def test_a_report_of_an_older_version_can_be_read(gone: str) -> None:
    document = json.loads(Process().report().model_dump_json(by_alias=True))
    del document[gone]
    del document["rates"]["seconds"]
    assert Report.model_validate(document).rates.seconds == 0

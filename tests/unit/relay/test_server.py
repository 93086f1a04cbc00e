"""The one port: probes, the report and the metrics, read over HTTP."""

import json
import logging
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.client import RemoteDisconnected
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from outbox_core.contract.report import Backlog, Rates, Report, TopError
from outbox_core.contract.settings import HttpPort
from outbox_core.errors import PermissionDenied, SettingsError, StoreUnavailable
from outbox_core.observe.health import Health
from outbox_core.observe.metrics import RelayMetrics
from outbox_core.observe.server import StatusServer

REPORT = Report(
    version="1.2.3",
    relay="orders",
    claimed_by="orders-0",
    ordering="Key",
    ready=True,
    troubles={},
    breaker="closed",
    lanes=128,
    backlog=Backlog(pending=5, claimed=2, dead=1, oldest_pending_seconds=1.5, approximate=False),
    rates=Rates(published=10.0, failed=0.5, dead=0.0),
    top_errors=[TopError(error_class="transient", code="C", text="text", count=3)],
    observed_at=datetime(2026, 1, 1, tzinfo=UTC),
)


@dataclass
class Process:
    """What the port shows, as the test sets it."""

    now: float = 1000.0
    health: Health = field(init=False)
    metrics: RelayMetrics = field(default_factory=RelayMetrics)
    report: Report | Exception = REPORT
    port: int = 0
    when_asked: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        self.health = Health(lambda: self.now)

    def reported(self) -> Report:
        self.when_asked()
        if isinstance(self.report, Exception):
            raise self.report
        return self.report

    def get(self, path: str) -> tuple[int, str, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=10) as got:
                return got.status, got.headers["Content-Type"], got.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.headers["Content-Type"], error.read().decode()


@pytest.fixture(scope="module")
def shared() -> Iterator[Process]:
    process = Process()
    server = StatusServer(
        HttpPort(host="127.0.0.1", port=0), process.health, process.metrics, process.reported
    )
    server.start()
    process.port = server.port
    yield process
    server.stop()


@pytest.fixture
def process(shared: Process) -> Process:
    shared.report = REPORT
    shared.when_asked = lambda: None
    for trouble in shared.health.troubles:
        shared.health.clear(trouble)
    return shared


def test_a_process_is_alive_whatever_its_troubles(process: Process) -> None:
    process.health.trouble("store", "no answer")
    process.report = RuntimeError("defect")
    assert process.get("/healthz") == (200, "text/plain", "alive\n")


def wait_for(event: threading.Event) -> None:
    event.wait(30)


def lost(process: Process) -> None:
    """For longer than a minute, as it reports."""
    process.now -= 100
    process.health.trouble("store", StoreUnavailable("the connection is closed"))
    process.now += 100


def test_a_process_that_alone_does_not_reach_the_store_is_restarted(process: Process) -> None:
    lost(process)
    status, _, body = process.get("/healthz")
    assert (status, body) == (503, "lost: store: the connection is closed\n")


def test_a_process_is_not_restarted_while_nobody_reaches_the_store(process: Process) -> None:
    lost(process)
    process.when_asked = lambda: process.health.trouble("status", StoreUnavailable("no answer"))
    assert process.get("/healthz")[0] == 200


def test_a_probe_does_not_wait_for_a_store_that_does_not_answer(process: Process) -> None:
    lost(process)
    answer = threading.Event()
    process.when_asked = lambda: wait_for(answer)
    began = time.monotonic()
    assert [process.get("/healthz")[0] for _ in range(2)] == [200, 200]
    assert time.monotonic() - began < 5
    answer.set()


def test_what_only_a_person_can_change_is_no_reason_for_a_restart(process: Process) -> None:
    process.now -= 100
    process.health.trouble("store", PermissionDenied("grant it"))
    process.now += 100
    assert process.get("/healthz")[0] == 200


def test_it_is_ready_when_nothing_stands_in_the_way(process: Process) -> None:
    assert process.get("/readyz") == (200, "text/plain", "ready\n")


def test_readiness_shows_the_troubles(process: Process) -> None:
    process.health.trouble("store", "no answer")
    process.health.trouble("broker", "not allowed")
    status, _, body = process.get("/readyz")
    assert status == 503
    assert body == "store: no answer\nbroker: not allowed\n"


def test_the_status_is_the_report_in_camel_case(process: Process) -> None:
    status, kind, body = process.get("/status")
    assert (status, kind) == (200, "application/json")
    shown: dict[str, Any] = json.loads(body)
    assert shown["claimedBy"] == "orders-0"
    assert shown["backlog"]["oldestPendingSeconds"] == 1.5
    assert shown["topErrors"] == [
        {"errorClass": "transient", "code": "C", "text": "text", "count": 3}
    ]
    assert Report.model_validate_json(body) == REPORT


def test_a_report_of_a_newer_version_can_be_read(process: Process) -> None:
    shown = json.loads(process.get("/status")[2])
    shown["somethingNew"] = {"a": 1}
    assert Report.model_validate(shown) == REPORT


def test_without_a_store_the_status_shows_it(process: Process) -> None:
    process.report = REPORT.model_copy(update={"backlog": None, "ready": False})
    assert json.loads(process.get("/status")[2])["backlog"] is None
    assert process.get("/metrics")[0] == 200


def test_a_report_that_failed_once_does_not_keep_it_from_being_ready(process: Process) -> None:
    process.health.trouble("status", "no answer")
    assert process.get("/readyz")[0] == 503
    process.when_asked = lambda: process.health.clear("status")
    assert process.get("/readyz")[0] == 200


def scrape(process: Process) -> dict[tuple[str, str], float]:
    status, kind, body = process.get("/metrics")
    assert (status, kind.partition(";")[0]) == (200, "text/plain")
    return {
        (sample.name, ",".join(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(body)
        for sample in family.samples
    }


def test_oo_62_a_scrape_shows_success_failure_retries_states_and_latency(process: Process) -> None:
    process.metrics.published.inc(7)
    process.metrics.failed.labels("transient").inc(3)
    process.metrics.retried.inc(2)
    process.metrics.latency.observe([0.004, 0.2])
    seen = scrape(process)
    assert seen["outbox_published_total", ""] == 7
    assert seen["outbox_failed_total", "transient"] == 3
    assert seen["outbox_retried_total", ""] == 2
    assert [seen["outbox_backlog", s] for s in ("pending", "claimed", "dead")] == [5, 2, 1]
    assert seen["outbox_commit_to_ack_seconds_count", ""] == 2
    assert seen["outbox_commit_to_ack_seconds_bucket", "0.005"] == 1
    assert seen["outbox_oldest_pending_seconds", ""] == 1.5


def test_readiness_is_a_metric_too(process: Process) -> None:
    assert scrape(process)["outbox_ready", ""] == 1
    process.report = REPORT.model_copy(update={"ready": False})
    assert scrape(process)["outbox_ready", ""] == 0


def test_what_is_not_here_is_answered_with_what_is(process: Process) -> None:
    status, _, body = process.get("/unknown")
    assert status == 404
    for page in ("/healthz", "/readyz", "/status", "/metrics"):
        assert page in body


def test_a_query_does_not_matter(process: Process) -> None:
    assert process.get("/healthz?verbose=1")[0] == 200


def test_a_defect_is_logged_and_not_shown(
    process: Process, caplog: pytest.LogCaptureFixture
) -> None:
    process.report = RuntimeError("password=hunter2")
    status, _, body = process.get("/status")
    assert (status, body) == (500, "failed; see the log\n")
    assert [vars(r)["event"] for r in caplog.records if r.levelno == logging.ERROR] == ["defect"]
    process.report = REPORT
    assert process.get("/status")[0] == 200


def test_a_port_that_is_taken_is_reported_with_the_cure(process: Process) -> None:
    settings = HttpPort(host="127.0.0.1", port=process.port)
    with pytest.raises(SettingsError, match=r"in use.*http\.port"):
        StatusServer(settings, process.health, process.metrics, process.reported)


def test_a_client_that_does_not_wait_for_the_answer_is_not_a_defect(
    process: Process, caplog: pytest.LogCaptureFixture
) -> None:
    def hung_up() -> None:
        raise ConnectionResetError

    process.when_asked = hung_up
    with pytest.raises(RemoteDisconnected):
        process.get("/status")
    assert caplog.records == []

"""Health: ready when there are no troubles, and each change is logged once."""

import logging

import pytest

from outbox_core.contract.reasons import ProcessReason
from outbox_core.errors import StoreUnavailable, WrongPassword
from outbox_core.observe.health import Health


@pytest.fixture
def health(caplog: pytest.LogCaptureFixture) -> Health:
    caplog.set_level(logging.DEBUG, "outbox.health")
    return Health()


def test_a_process_that_has_not_registered_is_not_ready(health: Health) -> None:
    assert set(health.troubles) == {"start"}


def test_it_is_ready_when_the_last_trouble_is_over(health: Health) -> None:
    health.trouble("store", "no answer")
    health.clear("start")
    assert health.troubles == {"store": "no answer"}
    health.clear("store")
    assert health.troubles == {}


def test_draining_is_not_ready_and_no_trouble(
    health: Health, caplog: pytest.LogCaptureFixture
) -> None:
    health.clear("start")
    health.draining("asked to stop")
    assert health.troubles == {"draining": "asked to stop"}
    assert [(r.levelname, r.message) for r in caplog.records] == [
        ("INFO", "draining: asked to stop")
    ]


def test_the_latest_reason_is_the_one_shown(health: Health) -> None:
    health.trouble("broker", "no answer")
    health.trouble("broker", "not allowed")
    assert health.troubles["broker"] == "not allowed"


def test_a_trouble_is_logged_when_it_comes_and_when_it_goes_and_not_between(
    health: Health, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(5):
        health.trouble("store", "no answer")
    for _ in range(5):
        health.clear("store")
    assert [(r.levelname, r.getMessage()) for r in caplog.records] == [
        ("WARNING", "store unavailable: no answer"),
        ("INFO", "store available again"),
    ]
    assert [vars(r)["event"] for r in caplog.records] == ["unavailable", "available"]


def test_that_all_is_well_from_the_start_is_not_logged(
    health: Health, caplog: pytest.LogCaptureFixture
) -> None:
    health.clear("start")
    health.clear("store")
    assert caplog.records == []


def test_what_was_read_does_not_change(health: Health) -> None:
    seen = health.troubles
    health.clear("start")
    assert set(seen) == {"start"}


def test_a_trouble_has_its_errors_reason_and_both_go_together(health: Health) -> None:
    assert health.reasons == {"start": "Starting"}
    health.trouble("store", WrongPassword("no"))
    health.trouble("broker", "no answer", ProcessReason.BROKER_UNREACHABLE)
    health.trouble("other", "who knows")
    health.clear("start")
    assert health.troubles == {"store": "no", "broker": "no answer", "other": "who knows"}
    assert health.reasons == {"store": "WrongPassword", "broker": "BrokerUnreachable"}
    health.trouble("store", StoreUnavailable("away"))
    assert health.reasons["store"] == "StoreUnreachable"
    health.clear("store")
    health.draining("asked to stop")
    assert health.reasons == {"broker": "BrokerUnreachable", "draining": "Draining"}

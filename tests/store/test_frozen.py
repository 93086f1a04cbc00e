"""A relay's process that stops in the middle of a transaction, and what others do about it."""

from contextlib import suppress
from datetime import timedelta

import psycopg
import pytest

from dev.services.waiting import wait_until
from fixtures.made_settings import relay_settings
from fixtures.outbox import Outbox
from outbox_core.store.connection import Connection, connect, end_frozen, relay_application
from outbox_relay.worker.reaper import Reaper, ReapReport

LOCK = "SELECT token FROM outbox.batch FOR UPDATE"
WAITS = """
    SELECT 1 FROM pg_stat_activity WHERE application_name = %s AND wait_event = 'ClientRead'
       AND backend_xid IS NOT NULL AND xact_start < clock_timestamp() - interval '2 s'
"""
WORKER = relay_application("relay", "worker 0")


@pytest.fixture
def claimed(outbox: Outbox) -> int:
    """A relay with a claim whose lease has expired."""
    relay = outbox.register()
    outbox.emit()
    outbox.claim(relay)
    outbox.end_leases()
    return relay


def stop_within(conn: Connection, outbox: Outbox, application: str) -> None:
    """As if it were frozen between two statements of a pipeline: no timeout of the server's."""
    conn.execute(LOCK)
    wait_until(lambda: outbox.sql(WAITS, application), 10, "it has been silent for two seconds")


def test_lc_30_what_a_frozen_process_was_writing_is_taken_over(
    outbox: Outbox, claimed: int
) -> None:
    kafka = {"bootstrapServers": "unused:1", "deliveryTimeout": "1s"}
    settings = relay_settings(lease="2s", publisher={"kafka": kafka})
    lost = suppress(psycopg.OperationalError)  # its pipeline cannot be ended in good order
    with connect(outbox.dsn, WORKER) as frozen, lost, frozen.pipeline():
        stop_within(frozen, outbox, WORKER)
        assert Reaper(outbox.conn, claimed, settings).reap() == ReapReport(1, 0)
    assert frozen.broken
    assert outbox.value("SELECT state FROM outbox.deliveries") == "PENDING"


@pytest.mark.parametrize(
    ("application", "longer_than"),
    [
        pytest.param(WORKER, timedelta(minutes=1), id="it has not been silent for so long"),
        pytest.param("psql", timedelta(0), id="it is somebody's who looks"),
        pytest.param(relay_application("other", "worker 0"), timedelta(0), id="another relay's"),
    ],
)
@pytest.mark.usefixtures("claimed")
def test_others_are_left_alone(outbox: Outbox, application: str, longer_than: timedelta) -> None:
    with connect(outbox.dsn, application) as conn, conn.pipeline():
        stop_within(conn, outbox, application)
        assert end_frozen(outbox.conn, "relay", longer_than) == 0
        assert conn.execute("SELECT 1").fetchone() == (1,)

"""How many workers claim, and how often, by what there is to do."""

import threading

import pytest

from dev.services import wait_until
from fixtures.outbox import Outbox
from fixtures.relays import Broker, RunRelay
from outbox_relay.worker.polling import BYTES_PER_CLAIM

pytestmark = pytest.mark.pg


def emit_many(outbox: Outbox, count: int) -> None:
    outbox.sql(
        "INSERT INTO outbox.event (event_type, payload, ordering_key)"
        " SELECT 'a.b', '', 'k' || i %% 100 FROM generate_series(1, %s) i",
        count,
    )


@pytest.mark.parametrize("ordering", ["None", "Key"])
def test_many_workers_share_a_backlog_and_one_serves_a_trickle(
    outbox: Outbox, run_relay: RunRelay, ordering: str
) -> None:
    broker = Broker()
    publishing: list[str] = []
    broker.before = lambda batch: publishing.append(threading.current_thread().name)
    relay = run_relay(outbox.dsn, broker, ordering=ordering, workers=3, batchSize=100)
    wait_until(lambda: relay.relay.context.crew.lanes, 10, "its lanes")
    emit_many(outbox, 5_000)
    wait_until(lambda: len(set(publishing)) == 3, 10, "all workers")
    wait_until(lambda: outbox.states().get("PUBLISHED") == 5_000, 20, "the backlog's end")
    wait_until(lambda: not relay.relay.context.crew.is_busy, 10, "the others' rest")
    publishing.clear()
    for n in range(30):
        emit_many(outbox, 1)
        wait_until(lambda n=n: len(publishing) > n, 10, "the event")  # type: ignore[misc]
    assert len(set(publishing)) == 1


def test_the_size_of_a_claim_is_known_to_the_worker(outbox: Outbox) -> None:
    assert outbox.value("SELECT outbox.bytes_per_claim()") == BYTES_PER_CLAIM

"""Relays on a database that publish to SQS, and one of them is killed."""

import os
import socket
from collections import defaultdict

import pytest

from broker.sqs.answers import Asked, answer, answering, done
from broker.sqs.queues import Queues
from dev.services import wait_until
from fixtures.outbox import Outbox
from fixtures.relays import StartRelay
from fixtures.volume import LEASE, in_flight, kill_at_work

pytestmark = [pytest.mark.pg, pytest.mark.sqs]

EVENTS = int(os.environ.get("OUTBOX_E2E_EVENTS", "3000"))
"""Several times what all three relays claim at once, so that one has claims when it is killed."""
KEYS = 100
BATCH = 200
WORKERS = 2


@pytest.mark.parametrize("fifo", [True, False], ids=["FIFO", "standard"])
@pytest.mark.timeout(240)
def test_three_relays_of_which_one_is_killed_lose_nothing_and_a_fifo_queue_has_each_once_in_order(
    outbox: Outbox, queues: Queues, start_relay: StartRelay, fifo: bool
) -> None:
    url = queues.make(fifo)
    publisher = {
        "sqs": {
            "queueUrl": url,
            "region": "eu-west-1",
            "accessKeyId": {"env": "TEST_KEY_ID"},
            "secretAccessKey": {"env": "TEST_SECRET"},
            "deliveryTimeout": "2s",
        }
    }
    pods = [
        start_relay(
            outbox.dsn,
            f"pod-{n}",
            ordering="Key" if fifo else "None",
            lease=LEASE,
            batchSize=BATCH,
            workers=WORKERS,
            publisher=publisher,
            kafka={"bootstrapServers": "unused:1"},  # what starts no Kafka
        )
        for n in range(3)
    ]
    for pod in pods:
        wait_until(lambda pod=pod: pod.happened("started"), 30, "started")  # type: ignore[misc]
    outbox.sql(
        "INSERT INTO outbox.event (event_type, payload, ordering_key)"
        " SELECT 'a.b', n::text::bytea, 'k' || n %% %s FROM generate_series(1, %s) n",
        KEYS,
        EVENTS,
    )

    def count() -> int:
        return outbox.states().get("PUBLISHED", 0)

    wait_until(lambda: count() > EVENTS // 10, 60, "some published")
    kill_at_work(outbox, pods)
    wait_until(lambda: count() == EVENTS, 150, "all published")
    numbers = [int(message.payload) for message in queues.received(url, EVENTS, timeout=120)]
    assert len(set(numbers)) == EVENTS
    if not fifo:
        assert len(numbers) <= EVENTS + in_flight(BATCH, WORKERS)
        return
    assert len(numbers) == EVENTS  # each once, also what the killed one had sent
    by_key: dict[int, list[int]] = defaultdict(list)
    for number in numbers:
        by_key[number % KEYS].append(number)
    assert all(found == sorted(found) for found in by_key.values())


UNSTORABLE = ["a\x00b", "a\ud800b"]
"""What JSON can write, and PostgreSQL cannot keep."""


@pytest.mark.parametrize("text", UNSTORABLE, ids=ascii)
@pytest.mark.parametrize("part", ["MessageId", "SequenceNumber", "Code", "Message", "__type"])
@pytest.mark.timeout(120)
def test_an_answer_that_cannot_be_stored_stops_nothing(
    outbox: Outbox, start_relay: StartRelay, part: str, text: str
) -> None:
    garbled = {"poisoned"}

    def say(asked: Asked, sock: socket.socket) -> bytes:
        entries = asked.json.get("Entries", [])
        if not any(entry["MessageBody"] in garbled for entry in entries):
            return done(asked, sock)
        garbled.clear()
        if part == "__type":
            return answer(400, {"__type": text, "message": "no"})
        found = {"Id": "0", "MessageId": "m", "Code": "c", "Message": "no", part: text}
        told = "Failed" if part in ("Code", "Message") else "Successful"
        return answer(200, {told: [found]})

    with answering(say) as server:
        relay = start_relay(
            outbox.dsn,
            "pod",
            batchSize=10,
            workers=1,
            retry={"baseDelay": "100ms"},
            publisher={
                "sqs": {
                    "queueUrl": server.queue_url(),
                    "region": "eu-west-1",
                    "accessKeyId": {"env": "TEST_KEY_ID"},
                    "secretAccessKey": {"env": "TEST_SECRET"},
                    "deliveryTimeout": "2s",
                }
            },
            kafka={"bootstrapServers": "unused:1"},  # what starts no Kafka
        )
        wait_until(lambda: relay.happened("started"), 30, "started")
        outbox.sql(
            "INSERT INTO outbox.event (event_type, payload) VALUES ('a.b', 'poisoned')",
        )
        wait_until(lambda: not garbled, 30, "answered")
        outbox.sql("INSERT INTO outbox.event (event_type, payload) VALUES ('a.b', 'well')")
        wait_until(lambda: outbox.states() == {"PUBLISHED": 2}, 30, "all published")

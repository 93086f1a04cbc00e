"""Relays on a database that send mail: killed at any moment, none is lost."""

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from broker.smtp.mail import SENDER, Mailbox, MailServer
from dev.services import wait_until
from fixtures.outbox import Outbox
from fixtures.relays import StartRelay
from fixtures.volume import in_flight, kill_at_work

pytestmark = [pytest.mark.pg, pytest.mark.smtp, pytest.mark.slow, pytest.mark.timeout(240)]

EVENTS = int(os.environ.get("OUTBOX_E2E_EVENTS", "300"))
"""Few, because the server forks for each: it is the slowest part by far."""
BATCH, WORKERS = 20, 1


@pytest.fixture
def smtp(mail_server: MailServer) -> dict[str, Any]:
    return {
        "host": "localhost",
        "port": mail_server.exim.port,
        "tls": {"caFile": str(Path(mail_server.ca))},
        "sender": SENDER,
        "allowedRecipientDomains": ["example.test"],
        "deliveryTimeout": "10s",
    }


def emit(outbox: Outbox, count: int, to: str) -> None:
    outbox.sql(
        "INSERT INTO outbox.event (event_type, payload)"
        " SELECT 'SEND_EMAIL', convert_to(json_build_object('to', %s::text, 'subject', i::text,"
        " 'body_text', 'Hello')::text, 'UTF8') FROM generate_series(1, %s::int) i",
        to,
        count,
    )


def test_three_relays_of_which_one_is_killed_lose_no_mail(
    outbox: Outbox,
    mail_server: MailServer,
    mailbox: Mailbox,
    start_relay: StartRelay,
    smtp: dict[str, Any],
) -> None:
    outbox.register()
    emit(outbox, EVENTS, mailbox.address)
    settings: dict[str, Any] = {
        "publisher": {"smtp": smtp},
        "kafka": {"bootstrapServers": "unused:1"},  # replaced by the line above
        "lease": "12s",
        "batchSize": BATCH,
        "workers": WORKERS,
    }
    relays = [start_relay(outbox.dsn, f"pod-{n}", **settings) for n in range(3)]
    mailbox.wait_for(EVENTS // 10)
    kill_at_work(outbox, relays)
    wait_until(lambda: outbox.states() == {"PUBLISHED": EVENTS}, 200, "all published")
    stored = {str(i) for (i,) in outbox.sql("SELECT event_id FROM outbox.event")}

    def arrived() -> Counter[str]:
        return Counter(str(m["X-Outbox-Event-Id"]) for m in mailbox.wait_for(EVENTS))

    # Taken is not delivered yet: the server has a queue.
    mail_server.exim.run_queue()
    wait_until(lambda: set(arrived()) == stored, 30, "all in the mailbox")
    found = arrived()
    assert found.total() - EVENTS <= in_flight(BATCH, WORKERS)
    result = outbox.value("SELECT result FROM outbox.events LIMIT 1")
    assert "250 OK id=" in str(result)
    for relay in relays:
        if relay.running:
            relay.stop()


def test_an_event_that_is_no_message_is_dead_and_the_others_arrive(
    outbox: Outbox, mailbox: Mailbox, start_relay: StartRelay, smtp: dict[str, Any]
) -> None:
    outbox.register()
    poisoned = outbox.insert(event_type="SEND_EMAIL", payload=b'{"to": "a@elsewhere.test"}')
    emit(outbox, 5, mailbox.address)
    relay = start_relay(
        outbox.dsn, publisher={"smtp": smtp}, kafka={"bootstrapServers": "unused:1"}, lease="12s"
    )
    wait_until(lambda: outbox.states() == {"PUBLISHED": 5, "DEAD": 1}, 30, "all judged")
    assert len(mailbox.wait_for(5)) == 5
    assert "INVALID_PAYLOAD" in str(outbox.event(poisoned))
    relay.stop()


def test_ce_33_ce_23_ce_25_ce_13_a_mail_asked_for_twice_is_sent_once_and_shows_its_key(
    outbox: Outbox, mailbox: Mailbox, start_relay: StartRelay, smtp: dict[str, Any]
) -> None:
    outbox.register()
    payload = {
        "to": [mailbox.address],
        "subject": "Order Confirmation",
        "body_html": "<p>Your order has been confirmed.</p>",
        "idempotency_key": "run-456-email-order-123",
    }
    text = json.dumps(payload)
    first, second = (
        outbox.emit("SEND_EMAIL", text, idempotency_key=payload["idempotency_key"])
        for _ in range(2)
    )
    assert first == second
    relay = start_relay(
        outbox.dsn, publisher={"smtp": smtp}, kafka={"bootstrapServers": "unused:1"}, lease="12s"
    )
    wait_until(lambda: outbox.states() == {"PUBLISHED": 1}, 30, "it is published")
    (message,) = mailbox.wait_for(1)
    assert message["Subject"] == "Order Confirmation"
    assert message["X-Idempotency-Key"] == "run-456-email-order-123"
    assert message.get_content().strip() == payload["body_html"]
    assert outbox.event(first)["result"].startswith("250 OK id=")
    relay.stop()

"""What a delivery report means."""

from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, Message

from outbox_core.contract.publishers.kafka import KafkaSettings
from outbox_core.model.attempt import Acked, ErrorClass, Outcome, Refused
from outbox_relay.publishers.kafka import sender as kafka_sender
from outbox_relay.publishers.kafka.config import Credentials
from outbox_relay.publishers.kafka.messages import messages_for
from outbox_relay.publishers.kafka.sender import Sender

MESSAGES = messages_for(KafkaSettings(bootstrap_servers="x:1", topic="orders"))


class Report:
    """A delivery report as the client gives it."""

    def __init__(self, offset: int | None) -> None:
        self._offset = offset

    def topic(self) -> str:
        return "orders"

    def partition(self) -> int:
        return 3

    def offset(self) -> int | None:
        return self._offset


def outcome_of(error: KafkaError | None, offset: int | None) -> Outcome | None:
    config: dict[str, Any] = {"bootstrap.servers": "127.0.0.1:1"}
    sender = Sender(config, Credentials(()), MESSAGES, False)
    sender._make_room_for(1)
    sender._callbacks[0](error, cast(Message, Report(offset)))
    return sender._reports[0]


def test_tc_15_a_report_with_an_offset_is_a_success() -> None:
    assert outcome_of(None, 42) == Acked("orders[3]@42")


@pytest.mark.parametrize("offset", [None, -1, -1001])
def test_tc_15_a_success_without_an_offset_is_none(offset: int | None) -> None:
    outcome = outcome_of(None, offset)
    assert isinstance(outcome, Refused)
    assert outcome.error.kind is ErrorClass.OUTAGE
    assert outcome.error.code == "NO_OFFSET"


@pytest.mark.parametrize("code", [KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT])
def test_an_event_that_was_purged_is_in_doubt_not_at_fault(code: int) -> None:
    assert outcome_of(KafkaError(code), None) is None


def test_only_what_the_broker_says_of_the_event_is_its_error() -> None:
    outcome = outcome_of(KafkaError(KafkaError.INVALID_RECORD), None)
    assert isinstance(outcome, Refused)
    assert outcome.error.kind is ErrorClass.EVENT


def test_a_route_is_not_proven_for_ever_where_no_other_comes_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Brokers forget a producer that was silent: its first event goes ahead again."""
    config: dict[str, Any] = {"bootstrap.servers": "127.0.0.1:1"}
    sender = Sender(config, Credentials(()), MESSAGES, False)
    route = ("orders", "k")
    sender.prove([route])
    assert route in sender.proven
    monkeypatch.setattr(kafka_sender, "PROVEN_FOR_SECONDS", -1.0)
    assert route not in sender.proven

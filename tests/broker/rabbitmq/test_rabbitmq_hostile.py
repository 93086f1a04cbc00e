"""Peers that break the protocol: nothing they say is taken for an answer, and nobody is stopped."""

import pytest

from broker.rabbitmq.scripts import Peer, ack, publisher_to
from conformance.publisher_contract import make_claim
from outbox_core.model.attempt import Acked, ErrorClass, Outcome, Refused
from outbox_relay.publishers.rabbitmq import wire

pytestmark = pytest.mark.rabbitmq

CUT_RETURN = wire.method_frame(wire.CHANNEL, wire.RETURN, b"\x00\x00")


def code_of_outage(outcome: Outcome) -> str:
    assert isinstance(outcome, Refused)
    assert outcome.error.kind is ErrorClass.OUTAGE
    return outcome.error.code


def test_a_late_confirm_of_a_call_that_failed_confirms_nothing_of_the_next() -> None:
    def script(peer: Peer) -> None:
        peer.let_in()
        peer.take_messages()
        peer.say(CUT_RETURN)
        peer.take_messages()
        peer.say(ack(1))
        peer.stay()

    with publisher_to(script, timeout=1) as publisher:
        for _ in range(2):
            (outcome,) = publisher.publish([make_claim()])
            assert code_of_outage(outcome) == "NOT_AMQP"


def test_the_answers_before_a_broken_frame_count() -> None:
    def script(peer: Peer) -> None:
        peer.let_in()
        peer.take_messages(2)
        peer.say(ack(1), CUT_RETURN)
        peer.stay()

    with publisher_to(script) as publisher:
        first, second = publisher.publish([make_claim(), make_claim()])
    assert isinstance(first, Acked)
    assert code_of_outage(second) == "NOT_AMQP"

"""Peers that break the protocol: nothing they say is taken for an answer, and nobody is stopped."""

import struct
import threading
import time
from datetime import timedelta

import pytest

from broker.rabbitmq.scripts import Peer, ack, channel_closed, frame, publisher_to
from conformance.publisher_contract import make_claim
from dev.services import wait_until
from outbox_core.errors import PublisherError
from outbox_core.model.attempt import Acked, ErrorClass, Outcome, Refused, Unsent
from outbox_relay.publishers.rabbitmq import wire
from outbox_relay.publishers.rabbitmq.publisher import PUBLISHER_CLOSED

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


@pytest.mark.parametrize(
    "answer",
    [
        wire.method_frame(wire.CHANNEL, wire.ACK, b"\x00"),
        frame(wire.METHOD, b"\x00\x01"),
        wire.method_frame(0, wire.CLOSE, b"\x00\x00"),
        wire.method_frame(0, wire.BLOCKED),
        CUT_RETURN,
        wire.method_frame(wire.CHANNEL, wire.RETURN, b"\x01\x38\x08NO_ROUTE\x00\x00")
        + frame(wire.HEADER, b"\x00"),
        ack(0, multiple=True),
        ack(9),
        wire.FRAME.pack(wire.BODY, wire.CHANNEL, 4_000_000_000) + b"x" * 1000,
        wire.method_frame(wire.CHANNEL, wire.CONFIRM_SELECT_OK) * 2,
        ack(1, channel=2),
        ack(1, channel=0),
        wire.method_frame(wire.CHANNEL, wire.CLOSE, b"\x00\xc8\x00"),
        b"HTTP/1.1 400 Bad",
        b"\x01\x00\x01\x00\x00\x00\x01x!",
    ],
    ids=[
        "short ack",
        "short method",
        "short close",
        "short blocked",
        "short return",
        "short header",
        "ack of 0",
        "ack of what was never sent",
        "a frame without end",
        "answers that nobody asked for",
        "ack on another channel",
        "ack on no channel",
        "close on a channel",
        "no AMQP",
        "no end",
    ],
)
def test_an_answer_that_makes_no_sense_leaves_events_in_doubt(answer: bytes) -> None:
    def script(peer: Peer) -> None:
        peer.let_in()
        peer.take_messages()
        peer.say(answer)
        peer.stay()

    with publisher_to(script) as publisher:
        (outcome,) = publisher.publish([make_claim()])
    assert code_of_outage(outcome) == "NOT_AMQP"


@pytest.mark.parametrize("tune", [b"\x00", struct.pack(">HIH", 1, 8, 0)], ids=["short", "tiny"])
def test_a_server_with_no_room_for_messages_is_an_outage(tune: bytes) -> None:
    with publisher_to(lambda peer: peer.let_in(tune)) as publisher:
        (outcome,) = publisher.publish([make_claim()])
        assert code_of_outage(outcome) == "NO_CONNECTION"
        with pytest.raises(PublisherError):
            publisher.probe()


def test_a_limit_of_nothing_is_not_believed() -> None:
    text = b"PRECONDITION_FAILED - message size 1 is larger than configured max size 0"

    def script(peer: Peer) -> None:
        peer.let_in()
        peer.take_messages()
        peer.say(ack(1) if peer.number else channel_closed(406, text))
        peer.stay()

    with publisher_to(script) as publisher:
        (first,) = publisher.publish([make_claim()])
        assert code_of_outage(first) == "PRECONDITION_FAILED"
        assert isinstance(publisher.publish([make_claim()])[0], Acked)


def test_heartbeats_without_end_on_an_idle_connection_stop_nobody() -> None:
    is_loud, is_over = threading.Event(), threading.Event()

    def script(peer: Peer) -> None:
        peer.let_in()
        peer.take_messages()
        peer.say(ack(1))
        while peer.number == 0 and not is_over.is_set():
            peer.say(wire.HEARTBEAT_FRAME * 50_000)
            is_loud.set()
        peer.stay()

    with publisher_to(script) as publisher:
        assert isinstance(publisher.publish([make_claim()])[0], Acked)
        assert is_loud.wait(5)
        found: list[Outcome] = []
        call = threading.Thread(
            target=lambda: found.extend(publisher.publish([make_claim()])), daemon=True
        )
        call.start()
        call.join(10)
        is_over.set()
        assert [type(outcome) for outcome in found] == [Acked]


def test_heartbeats_go_on_after_a_broken_frame_on_an_idle_connection() -> None:
    hung_up, beats = threading.Event(), threading.Event()

    def script(peer: Peer) -> None:
        peer.let_in()
        peer.take_messages()
        peer.say(ack(1))
        if peer.number == 0:
            peer.say(frame(wire.METHOD, b"\x00\x01"))
            peer.stay()
            hung_up.set()
        elif peer.hear().type == wire.HEARTBEAT:
            beats.set()

    with publisher_to(script, heartbeat="1s") as publisher:
        assert isinstance(publisher.publish([make_claim()])[0], Acked)
        assert hung_up.wait(10)
        assert isinstance(publisher.publish([make_claim()])[0], Acked)
        assert beats.wait(10)


def test_nothing_is_published_after_the_end_by_a_call_that_was_still_connecting() -> None:
    asked, is_closed, published = threading.Event(), threading.Event(), threading.Event()

    def script(peer: Peer) -> None:
        asked.set()
        is_closed.wait(10)
        peer.let_in()
        while peer.hear().method != wire.CLOSE:
            published.set()

    with publisher_to(script, timeout=10) as publisher:
        found: list[Outcome] = []
        call = threading.Thread(target=lambda: found.extend(publisher.publish([make_claim()])))
        call.start()
        assert asked.wait(5)
        publisher.close(timedelta(0))
        is_closed.set()
        call.join(15)
    assert found == [PUBLISHER_CLOSED]
    assert not published.is_set()


@pytest.mark.parametrize(
    "key", ["k" * 205, "k" * 211, "k" * 230, "x" + "ä" * 120, "k' in exchange 'a"], ids=len
)
def test_a_forbidden_key_is_recognised_though_the_server_cuts_it_short(key: str) -> None:
    told = f"ACCESS_REFUSED - access to topic '{key}' in exchange 'amq.topic' in vhost '/' refused"
    text = told.encode()

    def script(peer: Peer) -> None:
        peer.let_in()
        peer.take_messages(3)
        peer.say(channel_closed(403, text if len(text) < 256 else text[:252] + b"..."))
        peer.stay()

    with publisher_to(script) as publisher:
        batch = [make_claim(event_type=name) for name in ("k", key, "kk")]
        first, forbidden, behind = publisher.publish(batch)
    assert code_of_outage(first) == "ACCESS_REFUSED"
    assert isinstance(forbidden, Refused)
    assert forbidden.error.kind is ErrorClass.TRANSIENT
    assert isinstance(behind, Unsent)


def test_many_idle_connections_are_closed_in_the_time_of_one() -> None:
    together = threading.Barrier(15)
    said_goodbye: list[int] = []

    def script(peer: Peer) -> None:
        peer.let_in()
        peer.take_messages()
        together.wait(10)
        peer.say(ack(1))
        if peer.hear().method == wire.CLOSE:  # and it does not answer
            said_goodbye.append(peer.number)
        peer.stay()

    with publisher_to(script, timeout=10) as publisher:
        calls = [
            threading.Thread(target=publisher.publish, args=([make_claim()],)) for _ in range(15)
        ]
        for call in calls:
            call.start()
        for call in calls:
            call.join(15)
        begin = time.monotonic()
        publisher.close(timedelta(0))
        assert time.monotonic() - begin < 1.5
        wait_until(lambda: len(said_goodbye) == 15, 10, "all have heard it")

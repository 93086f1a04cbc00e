"""What becomes of events when SQS, a queue, the network or an event itself fails."""

import re
import socket
import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from broker.sqs.answers import Asked, Say, answer, answering, done, error
from broker.sqs.conftest import MakePublisher
from broker.sqs.queues import Queues
from conformance.publisher_contract import make_claim
from dev.services import ElasticMq, wait_until
from dev.services.process import free_port
from outbox_core.errors import BrokerRefused, PublisherError
from outbox_core.model.attempt import Acked, ErrorClass, Outcome, Refused, Unsent
from outbox_relay.publishers.sqs import connection, messages
from outbox_relay.publishers.sqs.errors import RequestFailed

pytestmark = pytest.mark.sqs


def kinds(outcomes: Sequence[Outcome]) -> set[ErrorClass]:
    assert all(isinstance(outcome, Refused) for outcome in outcomes)
    return {outcome.error.kind for outcome in outcomes if isinstance(outcome, Refused)}


def code(outcome: Outcome) -> str:
    assert isinstance(outcome, Refused)
    return outcome.error.code


def test_a_queue_that_is_missing_is_parked_while_others_go_on(
    elasticmq: ElasticMq, queues: Queues, make_publisher: MakePublisher
) -> None:
    here = queues.make(name="here")
    publisher = make_publisher(elasticmq.queue_url("{event_type}"))
    batch = [make_claim(event_type="gone" if n % 2 else "here") for n in range(40)]
    outcomes = publisher.publish(batch)
    assert all(isinstance(outcome, Acked) for outcome in outcomes[::2])
    assert kinds(outcomes[1::2]) == {ErrorClass.DESTINATION}
    assert code(outcomes[1]) == "QueueDoesNotExist"
    assert [p.name for p in publisher.parked()] == [elasticmq.queue_url("gone")]
    assert all(isinstance(o, Unsent) for o in publisher.publish(batch[1::2]))
    assert len(queues.received(here, 20)) == 20
    queues.make(name="gone")
    wait_until(lambda: isinstance(publisher.publish(batch[1:2])[0], Acked), 20, "it is tried again")
    assert publisher.parked() == []


def test_one_entry_that_the_server_refuses_fails_alone(
    queues: Queues, make_publisher: MakePublisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Our own rules would refuse it before: here they are blind."""
    monkeypatch.setattr(messages, "NOT_TEXT", re.compile(r"(?!)"))
    url = queues.make()
    publisher = make_publisher(url)
    batch = [make_claim(f"{n}".encode()) for n in range(9)]
    batch.insert(4, make_claim(b"a\x01b"))
    outcomes = list(publisher.publish(batch))
    poisoned = outcomes.pop(4)
    assert isinstance(poisoned, Refused)
    assert poisoned.error.kind is ErrorClass.EVENT
    assert all(isinstance(outcome, Acked) for outcome in outcomes)
    assert len(queues.received(url, 9)) == 9


def test_large_events_are_spread_over_requests(
    queues: Queues, make_publisher: MakePublisher
) -> None:
    url = queues.make()
    batch = [make_claim(b"x" * 300_000) for _ in range(10)]
    assert all(isinstance(o, Acked) for o in make_publisher(url).publish(batch))
    assert len(queues.received(url, 10)) == 10


@pytest.mark.parametrize("byte", [b"x", b"\xff"], ids=["text", "binary"])
def test_a_message_as_large_as_allowed_arrives(
    queues: Queues, make_publisher: MakePublisher, byte: bytes
) -> None:
    publisher = make_publisher(url := queues.make(), format="Debezium")
    room = 1_048_576 - len("idString") - 36
    if byte == b"\xff":
        room -= len("-") + len("outbox-payloadBinary")
    fits, too_large = publisher.publish([make_claim(byte * room), make_claim(byte * (room + 1))])
    assert isinstance(fits, Acked)
    assert code(too_large) == "MESSAGE_TOO_LARGE"
    assert len(queues.received(url, 1)[0].payload) == room


def test_nobody_listens(make_publisher: MakePublisher) -> None:
    publisher = make_publisher(f"http://127.0.0.1:{free_port()}/queue/orders")
    outcomes = publisher.publish([make_claim() for _ in range(25)])
    assert kinds(outcomes) == {ErrorClass.OUTAGE}
    with pytest.raises(PublisherError, match="does not answer"):
        publisher.probe()


def test_killed_in_the_middle_and_back_again(
    mortal_elasticmq: ElasticMq, queues: Queues, make_publisher: MakePublisher
) -> None:
    publisher = make_publisher(queues.make(), timeout=5)
    batch = [make_claim() for _ in range(5000)]
    killer = threading.Thread(target=mortal_elasticmq.kill)
    killer.start()
    outcomes = publisher.publish(batch)
    killer.join()
    failed = [o for o in outcomes if not isinstance(o, Acked)]
    assert failed
    assert kinds(failed) == {ErrorClass.OUTAGE}
    mortal_elasticmq.start()
    publisher.probe()


def test_frozen_in_the_middle_the_call_ends_in_time(
    frozen_elasticmq: ElasticMq, queues: Queues, make_publisher: MakePublisher
) -> None:
    publisher = make_publisher(queues.make(), timeout=2, concurrency=2)
    publisher.publish([make_claim()])
    frozen_elasticmq.pause()
    begin = time.monotonic()
    outcomes = publisher.publish([make_claim() for _ in range(100)])
    assert 1.5 < time.monotonic() - begin < 4
    assert kinds(outcomes[:20]) == {ErrorClass.OUTAGE}  # two requests were sent
    assert all(isinstance(outcome, Unsent) for outcome in outcomes[20:])
    frozen_elasticmq.resume()
    assert isinstance(publisher.publish([make_claim()])[0], Acked)


def drip(asked: Asked, sock: socket.socket) -> None:
    for byte in b"HTTP/1.1 200 OK\r\nX-Slow: " + b"x" * 10_000:
        sock.sendall(bytes([byte]))
        time.sleep(0.1)  # a slow server, not a wait for something


def drip_body(asked: Asked, sock: socket.socket) -> None:
    sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 10000\r\n\r\n")
    while True:
        sock.sendall(b" ")
        time.sleep(0.1)


def endless(asked: Asked, sock: socket.socket) -> None:
    sock.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    while True:
        sock.sendall(b"1000\r\n" + b" " * 4096 + b"\r\n")


@pytest.mark.parametrize("say", [drip, drip_body, endless])
def test_an_answer_that_never_ends_is_given_up_in_time(
    say: Say, make_publisher: MakePublisher
) -> None:
    with answering(say) as server:
        begin = time.monotonic()
        outcomes = make_publisher(server.queue_url(), timeout=1).publish([make_claim()] * 3)
        assert time.monotonic() - begin < 2
        assert kinds(outcomes) == {ErrorClass.OUTAGE}


@pytest.mark.parametrize(
    "head",
    ["Content-Length: 4000000000\r\n\r\n", "Transfer-Encoding: chunked\r\n\r\n-1\r\n"],
)
def test_of_an_answer_without_end_only_the_beginning_is_read(
    head: str, make_publisher: MakePublisher
) -> None:
    poured = 0

    def pour(asked: Asked, sock: socket.socket) -> None:
        nonlocal poured
        sock.sendall(f"HTTP/1.1 200 OK\r\n{head}".encode())
        while poured < 50:  # until it is cut; in MB
            sock.sendall(b"x" * 1_000_000)
            poured += 1

    with answering(pour) as server:
        (outcome,) = make_publisher(server.queue_url(), timeout=10).publish([make_claim()])
        assert kinds([outcome]) == {ErrorClass.OUTAGE}
    assert poured < 50


def test_chunks_are_read_and_the_connection_is_kept(make_publisher: MakePublisher) -> None:
    ports = set[int]()

    def in_chunks(asked: Asked, sock: socket.socket) -> bytes:
        ports.add(sock.getpeername()[1])
        body = done(asked, sock).partition(b"\r\n\r\n")[2]
        parts = b"".join(b"1\r\n%c\r\n" % byte for byte in body)
        return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + parts + b"0\r\n\r\n"

    with answering(in_chunks) as server:
        publisher = make_publisher(server.queue_url())
        for _ in range(3):
            assert isinstance(publisher.publish([make_claim()])[0], Acked)
        assert len(ports) == 1


def test_a_server_that_reads_nothing_is_given_up_in_time(make_publisher: MakePublisher) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/queue/orders"
        begin = time.monotonic()
        # More than the kernel keeps for a reader that may still come.
        batch = [make_claim(b"\xff" * 1_000_000) for _ in range(4)]
        outcomes = make_publisher(url, timeout=1).publish(batch)
        assert time.monotonic() - begin < 2.5
        assert kinds(outcomes) == {ErrorClass.OUTAGE}


def test_cut_after_sending_and_before_the_answer_is_in_doubt_and_not_sent_again(
    make_publisher: MakePublisher,
) -> None:
    with answering(lambda asked, sock: None) as server:
        outcomes = make_publisher(server.queue_url()).publish([make_claim()] * 3)
        assert kinds(outcomes) == {ErrorClass.OUTAGE}
        assert len(server.asked) == 1


def test_a_connection_that_the_server_has_closed_meanwhile_costs_no_event(
    make_publisher: MakePublisher,
) -> None:
    closed = threading.Event()

    def once(asked: Asked, sock: socket.socket) -> None:
        sock.sendall(done(asked, sock))
        sock.shutdown(socket.SHUT_RDWR)
        closed.set()

    with answering(once) as server:
        publisher = make_publisher(server.queue_url())
        for _ in range(3):
            assert isinstance(publisher.publish([make_claim()])[0], Acked)
            assert closed.wait(5)
            closed.clear()


E, T, D, O = ErrorClass.EVENT, ErrorClass.TRANSIENT, ErrorClass.DESTINATION, ErrorClass.OUTAGE  # noqa: E741

WHOLE = [
    (400, "com.amazonaws.sqs#QueueDoesNotExist", D),
    (400, "AWS.SimpleQueueService.NonExistentQueue", D),
    (403, "AccessDeniedException", D),
    (400, "com.amazonaws.sqs#KmsAccessDenied", D),
    (400, "KMS.DisabledException", D),
    (400, "com.amazonaws.sqs#RequestThrottled", D),
    (400, "ThrottlingException", D),
    (503, "ThrottlingException", D),
    (403, "com.amazon.coral.service#InvalidClientTokenId", O),
    (400, "com.amazon.coral.service#UnrecognizedClientException", O),
    (403, "SignatureDoesNotMatch", O),
    (400, "com.amazon.coral.service#ExpiredTokenException", O),
    (403, "InvalidSignatureException", O),
    (400, "com.amazon.coral.service#MissingAuthenticationTokenException", O),
    (400, "com.amazonaws.sqs#InvalidSecurity", O),
    (500, "InternalFailure", O),
    (503, "ServiceUnavailable", O),
    (400, "com.amazonaws.sqs#BatchRequestTooLong", E),
    (400, "com.amazonaws.sqs#InvalidMessageContents", E),
    (400, "com.amazonaws.sqs#UnsupportedOperation", T),
    (400, "InvalidParameterValue", T),
    (400, "NeverHeardOf", T),
]


@pytest.mark.parametrize(("status", "type_", "kind"), WHOLE, ids=[f"{s} {t}" for s, t, _ in WHOLE])
def test_whose_fault_an_answer_is(
    status: int, type_: str, kind: ErrorClass, make_publisher: MakePublisher
) -> None:
    with answering(error(status, type_)) as server:
        publisher = make_publisher(server.queue_url())
        outcomes = publisher.publish([make_claim()])
        assert kinds(outcomes) == {kind}
        if kind is not ErrorClass.OUTAGE:
            publisher.probe()  # it answers, whatever it thinks of us
        elif status >= 500:
            with pytest.raises(PublisherError):
                publisher.probe()
        else:
            with pytest.raises(BrokerRefused, match="does not let us in"):
                publisher.probe()


def test_throttling_asks_for_patience(make_publisher: MakePublisher) -> None:
    with answering(error(400, "RequestThrottled")) as server:
        (outcome,) = make_publisher(server.queue_url()).publish([make_claim()])
        assert isinstance(outcome, Refused)
        assert outcome.after == 1.0
    with answering(error(503, "ThrottlingException", Retry_After="37")) as server:
        (outcome,) = make_publisher(server.queue_url()).publish([make_claim()])
        assert isinstance(outcome, Refused)
        assert outcome.after == 37.0


ENTRIES = [
    ("InvalidMessageContents", True, E),
    ("InvalidParameterValue", True, E),
    ("NeverHeardOf", True, E),
    ("InternalError", False, T),
    ("InternalError", "false", T),
    ("ServiceUnavailable", False, T),
    ("KMS.AccessDeniedException", True, D),
    ("KMS.ThrottlingException", True, D),
    ("RequestThrottled", True, D),
    ("AccessDenied", True, D),
]


@pytest.mark.parametrize(("code", "sender", "kind"), ENTRIES)
def test_whose_fault_the_failure_of_an_entry_is(
    code: str, sender: object, kind: ErrorClass, make_publisher: MakePublisher
) -> None:
    def say(asked: Asked, sock: socket.socket) -> bytes:
        failed = {"Id": "1", "Code": code, "SenderFault": sender, "Message": "no"}
        good = [{"Id": n, "MessageId": f"m{n}", "SequenceNumber": "77"} for n in ("2", "0")]
        return answer(200, {"Successful": good, "Failed": [failed]})

    with answering(say) as server:
        publisher = make_publisher(server.queue_url("orders.fifo"))
        first, failed, last = publisher.publish([make_claim() for _ in range(3)])
    assert first == Acked("orders.fifo/m0@77")
    assert last == Acked("orders.fifo/m2@77")
    assert kinds([failed]) == {kind}


def test_a_request_that_is_refused_as_a_whole_is_asked_about_one_by_one(
    make_publisher: MakePublisher,
) -> None:
    def say(asked: Asked, sock: socket.socket) -> bytes:
        if any(e["MessageBody"] == "bad" for e in asked.json["Entries"]):
            return error(400, "InvalidMessageContents")(asked, sock) or b""
        return done(asked, sock)

    with answering(say) as server:
        batch = [make_claim(b"bad" if n == 7 else b"good") for n in range(25)]
        outcomes = list(make_publisher(server.queue_url()).publish(batch))
        assert kinds([outcomes.pop(7)]) == {ErrorClass.EVENT}
        assert all(isinstance(outcome, Acked) for outcome in outcomes)
        assert len(server.asked) == 3 + 10


@pytest.mark.parametrize(
    "said",
    [
        answer(200, b"<html>"),
        answer(200, []),
        answer(200, {}),
        answer(200, {"Successful": [{"Id": "9", "MessageId": "of nobody"}]}),
        answer(200, {"Successful": [{"Id": "x"}], "Failed": "no"}),
        answer(404, b"<html>not here"),
        answer(301, b"", Location="http://127.0.0.1:1/"),
        answer(403, b"<html>a firewall"),
        answer(200, b"[" * 200_000),
        answer(500, b"[" * 200_000),
        b"not HTTP at all\r\n\r\n",
        b"HTTP/1.1 99999 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
)
def test_what_is_no_answer_of_sqs_is_the_service_and_acknowledges_nothing(
    said: bytes, make_publisher: MakePublisher
) -> None:
    with answering(lambda asked, sock: said) as server:
        outcomes = make_publisher(server.queue_url(), timeout=2).publish([make_claim()] * 2)
        assert kinds(outcomes) == {ErrorClass.OUTAGE}


def test_an_answer_that_nobody_thought_of_is_the_services_fault_too(
    make_publisher: MakePublisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*answer: Any) -> Any:
        raise LookupError("a surprise")

    monkeypatch.setattr(connection, "_answer", fail)
    with answering(done) as server:
        (outcome,) = make_publisher(server.queue_url()).publish([make_claim()])
        assert kinds([outcome]) == {ErrorClass.OUTAGE}
        assert isinstance(outcome, Refused)
        assert "a surprise" in outcome.error.text


def test_what_the_answer_does_not_mention_is_not_acknowledged(
    make_publisher: MakePublisher,
) -> None:
    said = answer(200, {"Successful": [{"Id": "0", "MessageId": "m"}]})
    with answering(lambda asked, sock: said) as server:
        first, second = make_publisher(server.queue_url()).publish([make_claim()] * 2)
        assert isinstance(first, Acked)
        assert code(second) == "NO_REPORT"


def test_what_is_reported_both_as_done_and_as_failed_is_not_acknowledged(
    make_publisher: MakePublisher,
) -> None:
    good = [{"Id": n, "MessageId": "m"} for n in ("0", "1")]
    failed = [{"Id": "0", "Code": "InternalError", "SenderFault": False, "Message": "no"}]
    said = answer(200, {"Successful": good, "Failed": failed})
    with answering(lambda asked, sock: said) as server:
        first, second = make_publisher(server.queue_url()).publish([make_claim()] * 2)
        assert code(first) == "InternalError"
        assert isinstance(second, Acked)


def test_a_call_that_gives_up_does_not_cut_the_connection_that_another_has_by_now(
    make_publisher: MakePublisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, gave_up = threading.Event(), threading.Event()
    understand = connection._answer

    def slowly(*answer: Any) -> Any:
        """Of the first call, whose connection is free already."""
        if not reading.is_set():
            reading.set()
            gave_up.wait(10)
        return understand(*answer)

    def say(asked: Asked, sock: socket.socket) -> bytes:
        if asked.json["QueueUrl"] == "second":
            gave_up.wait(10)
        return answer(200, {"Attributes": {}})

    monkeypatch.setattr(connection, "_answer", slowly)
    with answering(say) as server:
        connections = make_publisher(server.queue_url())._connections

        def give_up() -> None:
            with pytest.raises(RequestFailed, match="NO_ANSWER"):
                connections.ask("GetQueueAttributes", {"QueueUrl": "first"}, now + 1)
            gave_up.set()

        now = time.monotonic()
        first = threading.Thread(target=give_up)
        first.start()
        assert reading.wait(10)
        found = connections.ask("GetQueueAttributes", {"QueueUrl": "second"}, now + 15)
        first.join(10)
        assert found == {"Attributes": {}}


def test_close_lets_go_of_what_is_in_flight(make_publisher: MakePublisher) -> None:
    arrived, outcomes = threading.Event(), list[Outcome]()

    def hang(asked: Asked, sock: socket.socket) -> None:
        arrived.set()
        sock.recv(1)

    with answering(hang) as server:
        publisher = make_publisher(server.queue_url(), timeout=30, concurrency=1)
        batch = [make_claim() for _ in range(100)]
        sending = threading.Thread(target=lambda: outcomes.extend(publisher.publish(batch)))
        sending.start()
        assert arrived.wait(10)
        begin = time.monotonic()
        publisher.close(timedelta(seconds=0.5))
        sending.join(10)
        assert time.monotonic() - begin < 5
        assert kinds(outcomes[:10]) == {ErrorClass.OUTAGE}
        assert all(isinstance(outcome, Unsent) for outcome in outcomes[10:])
        assert len(outcomes) == 100

"""What becomes of an event when its endpoint refuses, misbehaves or is not there."""

import json
import socket
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from broker.http.publishers import MakePublisher
from conformance.publisher_contract import make_claim
from dev.services import wait_until
from dev.services.http import Got, Handler, HttpServer, Misbehave, Reply, dead_port
from outbox_core.contract.publishers.http import HttpSettings
from outbox_core.model.attempt import Acked, ErrorClass, Refused, Unsent
from outbox_core.model.event import Claim
from outbox_relay.publishers.http.errors import KEPT_BODY_BYTES
from outbox_relay.publishers.http.publisher import HttpPublisher

pytestmark = pytest.mark.http

EVENT, TRANSIENT = ErrorClass.EVENT, ErrorClass.TRANSIENT
OUTAGE, DESTINATION = ErrorClass.OUTAGE, ErrorClass.DESTINATION


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        *((status, EVENT) for status in (400, 404, 405, 410, 413, 415, 422)),
        *((status, TRANSIENT) for status in (301, 307, 401, 403, 408, 409, 425, 429, 500, 501)),
        *((status, DESTINATION) for status in (502, 503, 504)),
    ],
)
def test_ce_32_ce_14_a_refusal_has_its_class(
    http_server: HttpServer, make_publisher: MakePublisher, status: int, kind: ErrorClass
) -> None:
    http_server.answer = lambda got: Reply(status, b"sorry", {"location": http_server.url})
    (outcome,) = make_publisher().publish([make_claim()])
    assert isinstance(outcome, Refused)
    assert (outcome.error.kind, outcome.error.code) == (kind, f"HTTP_{status}")
    assert "sorry" in outcome.error.text
    assert http_server.got == []  # a redirect is not followed


def test_ce_13_the_answer_is_the_result_within_bounds(
    http_server: HttpServer, make_publisher: MakePublisher
) -> None:
    http_server.answer = lambda got: Reply(202, b'{"id": 7, "token": "xyz"}\x00' + b"x" * 100_000)
    publisher = make_publisher()
    (outcome,) = publisher.publish([make_claim()])
    assert isinstance(outcome, Acked)
    assert outcome.result.startswith('202 {"id": 7, "token": ***}x')
    assert len(outcome.result) <= KEPT_BODY_BYTES + 10


@pytest.mark.parametrize(
    "misbehave", [Handler.hang, Handler.slow_headers], ids=["no answer", "slow headers"]
)
def test_a_slow_answer_ends_at_the_deadline(
    http_server: HttpServer,
    make_publisher: MakePublisher,
    misbehave: Callable[[Handler], None],
) -> None:
    http_server.answer = lambda got: Misbehave(misbehave)
    publisher = make_publisher(timeout="500ms")
    began = time.monotonic()
    (outcome,) = publisher.publish([make_claim()])
    assert time.monotonic() - began < 2
    assert isinstance(outcome, Refused)
    assert (outcome.error.kind, outcome.error.code) == (OUTAGE, "TIMEOUT")


@pytest.mark.parametrize("misbehave", [Handler.endless_body, Handler.trickling_body])
def test_a_body_without_end_does_not_take_back_the_acknowledgement(
    http_server: HttpServer,
    make_publisher: MakePublisher,
    misbehave: Callable[[Handler], None],
) -> None:
    http_server.answer = lambda got: Misbehave(misbehave)
    publisher = make_publisher()
    began = time.monotonic()
    (outcome,) = publisher.publish([make_claim()])
    assert time.monotonic() - began < 3
    assert isinstance(outcome, Acked)


def test_a_connection_cut_before_the_answer_is_in_doubt(
    http_server: HttpServer, make_publisher: MakePublisher
) -> None:
    publisher = make_publisher()
    assert isinstance(publisher.publish([make_claim()])[0], Acked)
    http_server.answer = lambda got: Misbehave(Handler.reset)
    (outcome,) = publisher.publish([make_claim()])
    assert isinstance(outcome, Refused)
    assert (outcome.error.kind, outcome.error.code) == (OUTAGE, "CONNECTION_LOST")


@pytest.mark.parametrize(("status", "code"), [(413, "HTTP_413"), (200, "CONNECTION_LOST")])
def test_a_refusal_sent_before_the_body_was_read_is_heard(status: int, code: str) -> None:
    """And nothing but a refusal: who has not read the event has not taken it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(b"HTTP/1.1 %d x\r\ncontent-length: 0\r\n\r\n" % status)

        server = threading.Thread(target=serve)
        server.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
        publisher = HttpPublisher(HttpSettings(url=url, max_message_bytes=20_000_000))
        (outcome,) = publisher.publish([make_claim(b"x" * 9_000_000)])
        publisher.close(timedelta(seconds=1))
        server.join()
    assert isinstance(outcome, Refused)
    assert outcome.error.code == code


def test_nobody_there_and_no_such_name_are_an_outage(make_publisher: MakePublisher) -> None:
    for url, code in (
        (f"http://127.0.0.1:{dead_port()}/", "CONNECTION_REFUSED"),
        ("http://nowhere.invalid/", "DNS"),
    ):
        (outcome,) = make_publisher(url).publish([make_claim()])
        assert isinstance(outcome, Refused)
        assert (outcome.error.kind, outcome.error.code) == (OUTAGE, code)


def test_patience_is_asked_for_in_seconds_or_by_a_date(
    http_server: HttpServer, make_publisher: MakePublisher
) -> None:
    date = format_datetime(datetime.now(UTC) + timedelta(seconds=60), usegmt=True)
    for value, low, high in (("37", 37, 37), (date, 50, 61), ("soon", 0, 0)):
        http_server.answer = lambda got, v=value: Reply(429, headers={"retry-after": v})  # type: ignore[misc]
        (outcome,) = make_publisher().publish([make_claim()])
        assert isinstance(outcome, Refused)
        assert outcome.error.kind is TRANSIENT
        assert low <= outcome.after <= high


def test_what_asked_for_patience_gets_no_more_in_this_call(
    http_server: HttpServer, make_publisher: MakePublisher
) -> None:
    asked: list[Got] = []

    def answer(got: Got) -> Reply:
        asked.append(got)
        return Reply(429, headers={"retry-after": "9"})

    http_server.answer = answer
    outcomes = make_publisher(perEndpoint=1).publish([make_claim() for _ in range(50)])
    assert len(asked) == 1
    assert sum(isinstance(o, Unsent) and o.after == 9 for o in outcomes) == 49


BY_PAYLOAD: dict[str, Any] = {
    "request": "Payload",
    "allowedHosts": ["127.0.0.1"],
    "allowedNetworks": ["127.0.0.0/8"],
}


def call_to(server: HttpServer) -> Claim:
    return make_claim(json.dumps({"url": f"{server.url}/", "body": 1}).encode())


def test_one_silent_endpoint_holds_up_no_other(
    http_server: HttpServer, make_publisher: MakePublisher
) -> None:
    publisher = make_publisher(timeout="1s", perEndpoint=2, **BY_PAYLOAD)
    with HttpServer() as sick_server:
        sick_server.answer = lambda got: Misbehave(Handler.hang)
        batch = [call_to((http_server, sick_server)[n % 2]) for n in range(40)]
        outcomes = publisher.publish(batch)
        assert all(isinstance(o, Acked) for o in outcomes[::2])
        sick = [o for o in outcomes[1::2] if isinstance(o, Refused)]
        assert {(o.error.kind, o.error.code) for o in sick} == {(DESTINATION, "TIMEOUT")}
        assert len(sick) == 2  # as many as were in flight; the others cost nothing
        assert [p.name for p in publisher.parked()] == [f"127.0.0.1:{sick_server.port}"]
        began = time.monotonic()
        again = publisher.publish(batch)
        assert all(isinstance(o, Acked) for o in again[::2])
        assert all(isinstance(o, Unsent) for o in again[1::2])
        assert time.monotonic() - began < 1


def test_a_dead_endpoint_of_fifty_holds_up_no_other(make_publisher: MakePublisher) -> None:
    """How fast the others stay is measured by a bench: here, that nobody waits for the dead one."""
    dead = 7
    with ExitStack() as stack:
        servers = [stack.enter_context(HttpServer()) for _ in range(50)]
        servers[dead].shutdown()
        servers[dead].server_close()
        publisher = make_publisher(timeout="500ms", perEndpoint=4, **BY_PAYLOAD)
        batch = [call_to(servers[n % 50]) for n in range(400)]
        for _ in range(4):
            outcomes = publisher.publish(batch)
            others = [o for n, o in enumerate(outcomes) if n % 50 != dead]
            assert all(isinstance(outcome, Acked) for outcome in others)
            tried = [o for o in outcomes[dead::50] if isinstance(o, Refused)]
            assert len(tried) <= 4  # of eight: as many as are sent to it at a time
            assert {o.error.kind for o in tried} <= {DESTINATION}
            assert [p.name for p in publisher.parked()] == [f"127.0.0.1:{servers[dead].port}"]


def test_the_call_ends_at_its_deadline_and_what_was_not_begun_is_unsent(
    http_server: HttpServer, make_publisher: MakePublisher
) -> None:
    def answer(got: Got) -> Reply:
        time.sleep(0.3)
        return Reply()

    http_server.answer = answer
    publisher = make_publisher(deliveryTimeout="2s", timeout="1s", perEndpoint=1)
    began = time.monotonic()
    outcomes = publisher.publish([make_claim() for _ in range(20)])
    assert time.monotonic() - began < 2.5
    assert [type(o) for o in outcomes] == sorted((type(o) for o in outcomes), key=str)
    assert {type(o) for o in outcomes} == {Acked, Unsent}


def test_close_ends_what_is_in_flight(
    http_server: HttpServer, make_publisher: MakePublisher
) -> None:
    http_server.answer = lambda got: Misbehave(Handler.hang)
    publisher = make_publisher()
    outcomes: list[object] = []
    call = threading.Thread(target=lambda: outcomes.extend(publisher.publish([make_claim()])))
    call.start()
    began = time.monotonic()
    publisher.close(timedelta(seconds=0.3))
    call.join(5)
    assert time.monotonic() - began < 3
    assert not isinstance(outcomes[0], Acked)


def test_nothing_is_sent_once_close_has_returned(
    http_server: HttpServer, make_publisher: MakePublisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, closed = threading.Event(), threading.Event()
    resolve = socket.getaddrinfo

    def slow(*args: Any, **options: Any) -> Any:
        asked.set()
        closed.wait(20)
        return resolve(*args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    publisher = make_publisher(f"http://localhost:{http_server.port}/")
    outcomes: list[object] = []
    call = threading.Thread(target=lambda: outcomes.extend(publisher.publish([make_claim()])))
    call.start()
    assert asked.wait(10)
    publisher.close(timedelta(0))
    assert len(outcomes) == 1  # it did not wait for the name servers
    assert isinstance(outcomes[0], Unsent)
    began = time.monotonic()
    assert isinstance(publisher.publish([make_claim()])[0], Unsent)
    assert time.monotonic() - began < 5
    closed.set()
    call.join(10)
    assert http_server.got == []


def close_without_notice(handler: Handler) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")


@pytest.mark.parametrize(
    "reply",
    [Reply(headers={"connection": "close"}), Misbehave(close_without_notice)],
    ids=["announced", "without notice"],
)
def test_an_idle_connection_that_the_server_closed_costs_no_event(
    http_server: HttpServer, make_publisher: MakePublisher, reply: Reply | Misbehave
) -> None:
    http_server.answer = lambda got: reply
    publisher = make_publisher()

    def closed() -> bool:
        """Until then a request would cross with its end, and be in doubt: rightly so."""
        return all(line.dropped for lines in publisher._lines._idle.values() for line in lines)

    for n in range(3):
        assert isinstance(publisher.publish([make_claim()])[0], Acked)
        wait_until(closed, 5, "the connection's end")
        assert http_server.connections == n + 1

"""Answers as servers send them, byte by byte: however they are framed, they mean the same."""

import ssl
from pathlib import Path

import pytest

from broker.http.publishers import MakePublisher
from conformance.publisher_contract import make_claim
from dev.services.http import Handler, HttpServer, Misbehave, Reply
from fixtures.certificates import Authority
from outbox_core.model.attempt import Acked, ErrorClass, Refused
from outbox_relay.publishers.http.connections import SHORT_ANSWER_BYTES

pytestmark = pytest.mark.http

OK = b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize(
    ("pieces", "result"),
    [
        ([OK + b"Content-Length: 2\r\n\r\nok"], "200 ok"),
        ([OK + b"Content-Length: 2\r\n\r\n", b"ok"], "200 ok"),
        ([b"HTTP/1.1 2", b"00 OK\r\ncontent-le", b"ngth:2\r\n\r\no", b"k"], "200 ok"),
        ([OK + b"Transfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"], "200 ok"),
        ([OK + b"Connection: close\r\n\r\nok"], "200 ok"),
        ([b"HTTP/1.0 200 OK\r\n\r\nok"], "200 ok"),
        ([b"HTTP/1.1 204 No Content\r\nserver: x\r\n\r\n"], "204"),
        ([b"HTTP/1.1 100 Continue\r\n\r\n", OK + b"content-length: 2\r\n\r\nok"], "200 ok"),
        ([OK + b"content-length: 9\r\n\r\nok"], "200 ok"),
        ([OK + b"content-length: 5000\r\n\r\n" + b"x" * 5000], "200 " + "x" * 2000),
        # As many as that would be read beyond the limit.
        ([OK + b"transfer-encoding: chunked\r\n\r\n-7fffffff\r\n\r\n2\r\nno\r\n0\r\n\r\n"], "200"),
    ],
    ids=[
        *("usual", "two", "pieces", "chunked", "close", "1.0", "204", "100", "cut", "long"),
        "less than no bytes",
    ],
)
def test_an_answer_is_read_however_it_is_framed(
    http_server: HttpServer, make_publisher: MakePublisher, pieces: list[bytes], result: str
) -> None:
    def write(handler: Handler) -> None:
        for piece in pieces:
            handler.wfile.write(piece)
            handler.wfile.flush()

    http_server.answer = lambda got: Misbehave(write)
    (outcome,) = make_publisher().publish([make_claim()])
    assert outcome == Acked(result)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        OK[:9],
        OK[:-2],
        OK,
        OK + b"content-type: text/pl",
        OK + b"content-length: 0\r\n",
        b"HTTP/1.1 103 Early Hints\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
    ],
)
def test_what_is_no_answer_is_in_doubt(
    http_server: HttpServer, make_publisher: MakePublisher, answer: bytes
) -> None:
    def write(handler: Handler) -> None:
        handler.wfile.write(answer)

    http_server.answer = lambda got: Misbehave(write)
    (outcome,) = make_publisher().publish([make_claim()])
    assert isinstance(outcome, Refused)
    assert outcome.error.code in ("BAD_ANSWER", "CONNECTION_LOST", "HTTP_101")


@pytest.mark.parametrize("status", [102, 103, 199])
@pytest.mark.parametrize("apart", [True, False], ids=["apart", "together"])
def test_hints_before_the_answer_are_not_the_answer(
    http_server: HttpServer, make_publisher: MakePublisher, status: int, apart: bool
) -> None:
    """Otherwise the next event, on the same connection, would get the answer of this one."""
    publisher = make_publisher(perEndpoint=1)
    hint = b"HTTP/1.1 %d Wait\r\nlink: </a>\r\n\r\n" % status

    def answer(handler: Handler) -> None:
        final = b"HTTP/1.1 422 No\r\ncontent-length: 0\r\n\r\n"
        for piece in [hint, hint, final] if apart else [hint + hint + final]:
            handler.wfile.write(piece)
            handler.wfile.flush()

    http_server.answer = lambda got: Misbehave(answer, keeps=True)
    for outcome in publisher.publish([make_claim(), make_claim()]):
        assert isinstance(outcome, Refused)
        assert outcome.error.code == "HTTP_422"
    assert http_server.connections == 1


@pytest.mark.parametrize("status", [100, 103])
def test_hints_without_end_are_given_up(
    http_server: HttpServer, make_publisher: MakePublisher, status: int
) -> None:
    """Reading them takes a whole CPU, and so from everybody else's events."""

    def flood(handler: Handler) -> None:
        while not handler.server.released.is_set():
            handler.wfile.write(b"HTTP/1.1 %d Wait\r\nlink: </a>\r\n\r\n" % status * 100)

    http_server.answer = lambda got: Misbehave(flood)
    (outcome,) = make_publisher().publish([make_claim()])
    assert isinstance(outcome, Refused)
    assert (outcome.error.kind, outcome.error.code) == (ErrorClass.OUTAGE, "BAD_ANSWER")
    assert "an answer of more than 128000 bytes" in outcome.error.text


def test_headers_that_our_deadline_cuts_are_no_answer(
    http_server: HttpServer, make_publisher: MakePublisher
) -> None:
    def begin(handler: Handler) -> None:
        handler.wfile.write(OK)
        handler.trickle(b"x" * 1000)

    http_server.answer = lambda got: Misbehave(begin)
    (outcome,) = make_publisher(timeout="500ms").publish([make_claim()])
    assert isinstance(outcome, Refused)
    assert outcome.error.code == "TIMEOUT"


NOBODY_ASKED = OK + b"content-length: 6\r\n\r\nnobody"


def answers_with(server: HttpServer, first: bytes) -> None:
    """To the first request this, and the connection stays; to the others 422."""
    answers = iter([first])

    def answer(handler: Handler) -> None:
        handler.wfile.write(next(answers, b"HTTP/1.1 422 No\r\ncontent-length: 0\r\n\r\n"))

    server.answer = lambda got: Misbehave(answer, keeps=True)


@pytest.mark.parametrize(
    "first",
    [
        OK + b"transfer-encoding: chunked\r\n\r\n0\r\n\r\n" + NOBODY_ASKED,
        OK + b"content-length: 0\r\n\r\n" + NOBODY_ASKED,
        OK + b"content-length: 0\r\ncontent-length: 41\r\n\r\n" + NOBODY_ASKED,
        OK + b"content-length: 41\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n" + NOBODY_ASKED,
        b"HTTP/1.1 204 No Content\r\nserver: x\r\n\r\n" + NOBODY_ASKED,
        b"HTTP/1.1 204 No Content\r\ncontent-length: 44\r\n\r\n" + NOBODY_ASKED,
    ],
    ids=["chunked", "length", "two lengths", "length and chunked", "204", "204 with length"],
)
def test_what_follows_an_answer_is_not_the_answer_to_the_next_event(
    http_server: HttpServer, make_publisher: MakePublisher, first: bytes
) -> None:
    answers_with(http_server, first)
    outcomes = make_publisher(perEndpoint=1).publish([make_claim(), make_claim()])
    assert [type(outcome) for outcome in outcomes] == [Acked, Refused]
    assert http_server.connections == 2  # more of it may come


def test_what_follows_an_answer_in_its_tls_record_is_not_the_answer_to_the_next_event(
    make_publisher: MakePublisher, tmp_path: Path
) -> None:
    authority = Authority(tmp_path / "ca", "ca")
    issued = authority.issue("server", "localhost")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(issued.cert, issued.key)
    head = OK + b"content-length: %d\r\n\r\n"
    size = SHORT_ANSWER_BYTES - len(head % 1000)
    with HttpServer(context) as server:
        answers_with(server, head % size + b"x" * size + NOBODY_ASKED)
        publisher = make_publisher(
            f"https://localhost:{server.port}/", tls={"caFile": str(authority.cert)}, perEndpoint=1
        )
        outcomes = publisher.publish([make_claim(), make_claim()])
    assert [type(outcome) for outcome in outcomes] == [Acked, Refused]


def test_a_tls_connection_that_ended_within_an_answer_is_not_used_again(
    make_publisher: MakePublisher, tmp_path: Path
) -> None:
    """TLS has an end of its own, and once that was read the connection below looks alive."""
    authority = Authority(tmp_path / "ca", "ca")
    issued = authority.issue("server", "localhost")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(issued.cert, issued.key)

    def end_in_the_body(handler: Handler) -> None:
        handler.wfile.write(OK + b"content-length: 9\r\n\r\nok")
        handler.connection.unwrap()

    with HttpServer(context) as server:
        url = f"https://localhost:{server.port}/"
        publisher = make_publisher(url, tls={"caFile": str(authority.cert)}, perEndpoint=1)
        for do in (Misbehave(end_in_the_body), Reply()):
            server.answer = lambda got, do=do: do  # type: ignore[misc]
            assert publisher.publish([make_claim()]) == [Acked("200 ok")]


@pytest.mark.parametrize("length", [b"", b"content-length: 0\r\n"], ids=["without", "with"])
def test_a_connection_is_used_again_after_204(
    http_server: HttpServer, make_publisher: MakePublisher, length: bytes
) -> None:
    answers_with(http_server, b"HTTP/1.1 204 No Content\r\nserver: x\r\n" + length + b"\r\n")
    publisher = make_publisher(perEndpoint=1)
    publisher.publish([make_claim(), make_claim()])
    assert http_server.connections == 1

"""Answers as servers send them, byte by byte: however they are framed, they mean the same."""

import pytest

from broker.http.publishers import MakePublisher
from conformance.publisher_contract import make_claim
from dev.services.http import Handler, HttpServer, Misbehave
from outbox_core.model.attempt import Acked, Refused

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
    ],
    ids=["usual", "two", "pieces", "chunked", "close", "1.0", "204", "100", "cut", "long"],
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


@pytest.mark.parametrize("answer", [b"", b"nonsense\r\n\r\n", b"HTTP/1.1 abc\r\n\r\n", OK[:9]])
def test_what_is_no_answer_is_in_doubt(
    http_server: HttpServer, make_publisher: MakePublisher, answer: bytes
) -> None:
    def write(handler: Handler) -> None:
        handler.wfile.write(answer)

    http_server.answer = lambda got: Misbehave(write)
    (outcome,) = make_publisher().publish([make_claim()])
    assert isinstance(outcome, Refused)
    assert outcome.error.code in ("BAD_ANSWER", "CONNECTION_LOST")

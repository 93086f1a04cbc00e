"""
Requests to SQS by AWS's JSON protocol: several at a time, each with a deadline, over connections
that are kept open.

Of botocore, only the signature and the credentials are used. Its client was measured to take nearly
three times the CPU of this one, and it cannot be made to give up at a deadline. Here the thread
that waits for an answer cuts the connection at its deadline, even if the server sends byte by byte.
Nothing is ever sent twice.
"""

import http.client
import json
import select
import socket
import ssl
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from outbox_core.contract.publishers.sqs import SqsSettings
from outbox_core.errors import SettingsError
from outbox_relay.publishers.resolving import reach
from outbox_relay.publishers.sqs.credentials import Signer
from outbox_relay.publishers.sqs.errors import ASKS_FOR_PATIENCE, RequestFailed, plain

LARGEST_ANSWER_BYTES = 1 << 20
READ_BYTES = 1 << 16
IDLE_SECONDS = 15.0
"""A connection that was not used for longer may have been closed on the way, unnoticed."""

Document = dict[str, Any]


class Wire:
    """One connection."""

    def __init__(self, connection: http.client.HTTPConnection) -> None:
        self._connection = connection
        self._cut = False
        self.used = time.monotonic()

    @property
    def is_fresh(self) -> bool:
        sock = self._connection.sock
        if sock is None or self._cut or time.monotonic() - self.used > IDLE_SECONDS:
            return False
        poll = select.poll()
        poll.register(sock, select.POLLIN)
        return not poll.poll(0)  # there is nothing to read but its end

    def post(
        self, path: str, headers: dict[str, str], body: bytes, until: float
    ) -> tuple[int, http.client.HTTPMessage, bytes]:
        connection = self._connection
        connection.timeout = max(0.001, until - time.monotonic())
        if connection.sock is None:
            # Left alone, http.client waits for name servers without a limit.
            place = connection.host, connection.port
            connection._create_connection = lambda *_: reach(*place, until)  # type: ignore[attr-defined]
            connection.connect()
        else:
            connection.sock.settimeout(connection.timeout)
        if self._cut or time.monotonic() >= until:
            raise TimeoutError("timed out")
        connection.request("POST", path, body, headers)
        response = connection.getresponse()
        found = _body(response)
        if not response.isclosed():
            connection.close()  # the rest of the answer is not needed
        self.used = time.monotonic()
        return response.status, response.headers, found

    def cut(self) -> None:
        """From another thread: `post` returns with an error at once."""
        self._cut = True
        sock = self._connection.sock
        if sock is not None:
            with suppress(OSError):
                # On the TCP connection: ending TLS properly would wait for the other side.
                socket.socket.shutdown(sock, socket.SHUT_RDWR)

    def close(self) -> None:
        self._connection.close()


class _TooLate(Exception):
    """Nothing was sent."""


class Request:
    """On its way, or about to be."""

    def __init__(self, target: str, document: Document, until: float) -> None:
        self.target = target
        self.body = json.dumps(document, separators=(",", ":")).encode()
        self.until = until
        self.wire: Wire | None = None
        self.future: Future[Document]


class Connections:
    """To one endpoint."""

    def __init__(self, settings: SqsSettings, endpoint: str, signer: Signer) -> None:
        parts = urlsplit(endpoint)
        self._url = f"{parts.scheme}://{parts.netloc}/"
        self._host, self._port = parts.hostname or "", parts.port
        # Read now, to fail early on a CA that cannot be read.
        self._tls = _tls_context(settings) if parts.scheme == "https" else None
        self._signer = signer
        self._lock = threading.Lock()
        self._idle: list[Wire] = []
        self._requests: set[Request] = set()
        self._closed = self._stopped = False
        self._pool = ThreadPoolExecutor(settings.concurrency, "sqs")

    @property
    def endpoint(self) -> str:
        return self._url

    def ask(self, target: str, document: Document, until: float) -> Document:
        """Raises RequestFailed unless it succeeded."""
        (answer,) = self.ask_all(target, [document], until)
        if answer is None:
            raise RequestFailed("CLOSED", "not sent: there was no time, or the publisher is closed")
        if isinstance(answer, RequestFailed):
            raise answer
        return answer

    def ask_all(
        self, target: str, documents: Sequence[Document], until: float
    ) -> list[Document | RequestFailed | None]:
        """None: it was never sent."""
        requests = [Request(target, document, until) for document in documents]
        with self._lock:
            if self._closed:
                return [None] * len(requests)
            self._requests.update(requests)
            for request in requests:
                request.future = self._pool.submit(self._run, request)
        wait([request.future for request in requests], max(0.0, until - time.monotonic()))
        answers = [self._result(request) for request in requests]
        with self._lock:
            self._requests.difference_update(requests)
        return answers

    def close(self, timeout: float) -> None:
        with self._lock:
            self._closed = True
            requests = list(self._requests)
        wait([request.future for request in requests], timeout)
        self._stopped = True  # for the threads: cancelling a future would not wake its waiter
        self._pool.shutdown(wait=False)
        for request in requests:
            self._cut(request)
        with self._lock:
            idle, self._idle = self._idle, []
        for wire in idle:
            wire.close()

    def _result(self, request: Request) -> Document | RequestFailed | None:
        if request.future.cancel():
            return None
        if not request.future.done():
            self._cut(request)
            return RequestFailed("NO_ANSWER", "no answer in time")
        error = request.future.exception()
        if error is None:
            return request.future.result()
        if isinstance(error, _TooLate):
            return None
        if not isinstance(error, RequestFailed):
            return _trouble(error, self._url)
        if error.lets_nobody_in:
            self._signer.forget()
        return error

    def _run(self, request: Request) -> Document:
        if self._is_late(request):
            raise _TooLate  # those before it took all the time
        headers = self._signer.headers(self._url, request.target, request.body)
        wire = request.wire = self._take()
        # Finding the keys may take any time. Checked again only now that there is a wire: a caller
        # that gives up after this finds the wire, and cuts it.
        if self._is_late(request):
            wire.close()
            raise _TooLate
        try:
            status, received, body = wire.post("/", headers, request.body, request.until)
        except BaseException:
            wire.close()
            raise
        self._give_back(request, wire)
        return _answer(status, received, body)

    def _is_late(self, request: Request) -> bool:
        return self._stopped or time.monotonic() >= request.until

    def _take(self) -> Wire:
        while True:
            with self._lock:
                wire = self._idle.pop() if self._idle else None
            if wire is None:
                break
            if wire.is_fresh:
                return wire
            wire.close()
        if self._tls is None:
            return Wire(http.client.HTTPConnection(self._host, self._port))
        return Wire(http.client.HTTPSConnection(self._host, self._port, context=self._tls))

    def _cut(self, request: Request) -> None:
        with self._lock:  # it may be given back at this moment, and be used by another request
            if request.wire is not None:
                request.wire.cut()

    def _give_back(self, request: Request, wire: Wire) -> None:
        with self._lock:
            request.wire = None
            if not self._closed:
                self._idle.append(wire)
                return
        wire.close()


def _tls_context(settings: SqsSettings) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=settings.ca_file)
    except OSError as error:  # also for a file that is not a certificate
        raise SettingsError(f"sqs.caFile: cannot use {settings.ca_file}: {error}") from None


def _body(response: http.client.HTTPResponse) -> bytes:
    """At most LARGEST_ANSWER_BYTES of it, or a little more."""
    if not response.chunked:
        return response.read(LARGEST_ANSWER_BYTES)
    # Piece by piece: for a chunk of negative size, `read` would read without end.
    found = bytearray()
    while len(found) < LARGEST_ANSWER_BYTES and (piece := response.read1(READ_BYTES)):
        found += piece
    return bytes(found)


def _answer(status: int, headers: http.client.HTTPMessage, body: bytes) -> Document:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        found = None
    if status == 200 and isinstance(found, dict):
        return found
    if status == 200:
        raise RequestFailed("BAD_ANSWER", "the answer is not from SQS", status)
    fields = found if isinstance(found, dict) else {}
    code = str(fields.get("__type") or fields.get("code") or f"HTTP_{status}")
    text = fields.get("message") or fields.get("Message") or f"HTTP status {status}"
    if status >= 500 and plain(code) not in ASKS_FOR_PATIENCE:
        code, text = f"HTTP_{status}", f"{code}: {text}"
    raise RequestFailed(code, str(text), status, _seconds(headers.get("Retry-After")))


def _seconds(retry_after: str | None) -> float:
    return float(retry_after) if retry_after and retry_after.isdecimal() else 0.0


def _trouble(error: BaseException, url: str) -> RequestFailed:
    """Whatever it was, no event is to blame, and the request may have been sent."""
    text = f"{url}: {error}" if str(error) else f"{url}: {type(error).__name__}"
    if isinstance(error, ssl.SSLError):
        return RequestFailed("TLS_FAILED", text)
    if isinstance(error, TimeoutError):
        return RequestFailed("NO_ANSWER", text)
    return RequestFailed("NO_CONNECTION", text)

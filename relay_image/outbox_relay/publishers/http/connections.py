"""
Connections: each carries one request at a time, is kept open for the next one, and is cut at a
request's deadline.

Built on sockets and `http.client`'s reader of answers. A larger client would have little to do,
since the relay itself decides on addresses, retries, redirects and limits. A connection goes to an
address that `egress` has approved; the certificate is checked against the host's name as usual.
"""

import http.client
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from http import HTTPStatus
from typing import Final, Self, cast

from outbox_relay.publishers.egress import Address
from outbox_relay.publishers.http.errors import KEPT_BODY_BYTES, Answer, Closed, TimedOut
from outbox_relay.publishers.http.urls import Endpoint
from outbox_relay.publishers.resolving import beside, in_time

IDLE_SECONDS: Final = 4.0
"""Servers close what is idle, many after 5 s; a request that crosses the close is in doubt."""
CONNECT_SECONDS: Final = 5.0
"""For one address: a host that is there answers within milliseconds."""
DRAINED_BYTES: Final = 64_000
"""To read a longer rest of an answer costs more than a new connection."""
BODY_SECONDS: Final = 1.0
"""For an answer's body, once its headers are there: it is only kept for people."""
TICK_SECONDS: Final = 0.1
LONGEST_ANSWER_BYTES: Final = 128_000
"""Read of one answer, and of what precedes it: endless hints or headers would keep a CPU busy until
the deadline."""

READ_BYTES: Final = 8192
INTERIM: Final = frozenset(range(100, 200)) - {HTTPStatus.SWITCHING_PROTOCOLS}
"""Answers before the answer; 101 is the last one, since what follows is another protocol."""
WITHOUT_BODY: Final = frozenset((HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED))
SHORT_ANSWER_BYTES: Final = KEPT_BODY_BYTES + 2000
USUAL_ANSWER: Final = re.compile(
    rb"HTTP/1\.1 (?P<status>[2-5][0-9][0-9])(?: [^\r\n]*)?"
    rb"(?P<headers>(?:\r\n[^\r\n:\s]+:[^\r\n]*)+)\r\n\r\n(?P<body>.*)",
    re.DOTALL,
)
ODD_ANSWER: Final = re.compile(
    rb"(?i)\r\n(?:connection:(?![ \t]*keep-alive[ \t]*(?:\r\n|$))|transfer-encoding:|retry-after:)"
)
CONTENT_LENGTH: Final = re.compile(rb"(?i)\r\ncontent-length:[ \t]*([0-9]{1,9})[ \t]*(?=\r\n|$)")

Resolve = Callable[[Endpoint], Sequence[Address]]


class Watchdog:
    """
    Cuts connections at their deadline. A socket's own timeout begins again with every byte, so a
    peer that sends one now and then would never reach it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._deadlines: dict[Line, float] = {}
        self._busy = threading.Event()
        self._limit = float("inf")
        self._closed = False
        self._thread: threading.Thread | None = None

    def watch(self, line: "Line", deadline: float) -> None:
        """Raises Closed if nothing would cut it any more."""
        with self._lock:
            if self._closed:
                raise Closed
            self._deadlines[line] = deadline
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="http-watch", daemon=True)
                self._thread.start()
        if not self._busy.is_set():
            self._busy.set()

    def forget(self, line: "Line") -> None:
        with self._lock:
            self._deadlines.pop(line, None)

    def limit(self, deadline: float) -> None:
        """No request lasts longer than this."""
        self._limit = deadline

    def close(self) -> None:
        """Cuts what is left."""
        with self._lock:
            self._closed = True
            for line in self._deadlines:
                line.cut()
            self._deadlines.clear()
        self._busy.set()

    def _run(self) -> None:
        while not self._closed:
            self._busy.wait()
            with self._lock:
                now = time.monotonic()
                for line, deadline in list(self._deadlines.items()):
                    if now >= min(deadline, self._limit):
                        line.cut()
                        del self._deadlines[line]
                if not self._deadlines:
                    self._busy.clear()
            time.sleep(TICK_SECONDS)


class Line:
    """One connection. Belongs to one thread at a time; the watchdog may cut it."""

    def __init__(self, endpoint: Endpoint, watchdog: Watchdog) -> None:
        self.endpoint = endpoint
        self.idle_since = 0.0
        self._watchdog = watchdog
        self._sock: socket.socket | None = None
        # The same connection under another descriptor: TLS takes over the first one.
        self._handle: socket.socket | None = None
        self._was_cut = False

    def connect(self, addresses: Sequence[Address], tls: ssl.SSLContext, deadline: float) -> None:
        """To the first address that answers; OSError of the last one if none does."""
        for n, address in enumerate(addresses):
            try:
                return self._connect(address, tls, deadline)
            except OSError:
                self.close()
                if n == len(addresses) - 1 or time.monotonic() >= deadline:
                    raise

    def _connect(self, address: Address, tls: ssl.SSLContext, deadline: float) -> None:
        sock = socket.socket(address.family, socket.SOCK_STREAM)
        self._sock = sock
        sock.settimeout(min(CONNECT_SECONDS, _left(deadline)))
        sock.connect((address.ip, address.port))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # From here on the watchdog alone keeps deadlines: with a timeout, every operation on the
        # socket would take two system calls.
        sock.settimeout(None)
        self._handle = sock.dup()
        if self.endpoint.scheme == "https":
            self._watchdog.watch(self, deadline)
            try:
                self._sock = tls.wrap_socket(sock, server_hostname=self.endpoint.host)
            except (OSError, ValueError) as error:
                raise self._explained(error) from None
            finally:
                self._watchdog.forget(self)

    def exchange(
        self, head: bytes, body: bytes, method: str, deadline: float
    ) -> tuple[Answer, bool]:
        """The answer, and whether the connection can be used again. After any exception but Closed,
        the request may have arrived."""
        assert self._sock is not None
        self._watchdog.watch(self, deadline)
        try:
            try:
                self._send(head, body)
            except OSError:
                if (refusal := self._early_refusal(method, deadline)) is None:
                    raise
                return refusal, False
            return self._answer(method, deadline)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise self._explained(error) from None
        finally:
            self._watchdog.forget(self)

    def _send(self, head: bytes, body: bytes) -> None:
        assert self._sock is not None
        if len(body) < 64_000:
            self._sock.sendall(head + body)
        else:
            self._sock.sendall(head)
            self._sock.sendall(body)

    def _early_refusal(self, method: str, deadline: float) -> Answer | None:
        """The peer's answer before it stopped reading: mostly 413. A success would be that of half
        a request, and does not count."""
        self._end()  # so that only what is here already is read
        with suppress(OSError, http.client.HTTPException, ValueError):
            answer, _ = self._answer(method, deadline)
            return answer if answer.status >= HTTPStatus.BAD_REQUEST else None
        return None

    def _answer(self, method: str, deadline: float) -> tuple[Answer, bool]:
        """The usual short answer is read here, because http.client takes ten times as long for its
        headers; whatever is unusual is left to http.client, which gets what was read so far."""
        assert self._sock is not None
        read = self._sock.recv(SHORT_ANSWER_BYTES)
        usual = USUAL_ANSWER.fullmatch(read)
        if usual is None or ODD_ANSWER.search(usual["headers"]):
            return self._unusual_answer(method, deadline, read)
        status, body = int(usual["status"]), usual["body"]
        if _length_of(status, usual["headers"]) != len(body):
            return self._unusual_answer(method, deadline, read)
        return Answer(status, None, body), not self._was_cut

    def _unusual_answer(self, method: str, deadline: float, read: bytes) -> tuple[Answer, bool]:
        assert self._sock is not None
        reader = _Reader(read, self._sock)
        source = cast(socket.socket, reader)
        response = http.client.HTTPResponse(source, method=method)
        response.begin()
        while response.status in INTERIM:
            # http.client takes any 1xx but 100 for the answer, which is still to come.
            response = http.client.HTTPResponse(source, method=method)
            response.begin()
        with response:
            # The outcome is settled by now, whatever becomes of the body.
            beginning, reusable = b"", False
            with suppress(Closed, OSError, http.client.HTTPException, ValueError):
                self._watchdog.watch(self, min(deadline, time.monotonic() + BODY_SECONDS))
                beginning = response.read(KEPT_BODY_BYTES)
                if not response.isclosed():
                    rest = response.length
                    if rest is None or rest <= DRAINED_BYTES:
                        response.read(DRAINED_BYTES)
                reusable = (
                    response.isclosed()
                    and not response.length  # otherwise it was closed by the connection's end
                    and not response.will_close
                    and not reader.rest
                    and _is_framed_once(response)
                )
            after = response.headers.get("retry-after")
            return Answer(response.status, after, beginning), reusable and not self._was_cut

    def _explained(self, error: Exception) -> Exception:
        return TimedOut() if self._was_cut or isinstance(error, TimeoutError) else error

    @property
    def dropped(self) -> bool:
        """Whether the peer has closed it, or sent something unasked."""
        assert self._handle is not None
        if isinstance(self._sock, ssl.SSLSocket) and self._sock.pending():
            return True  # it has left the kernel, which the next line asks
        try:
            self._handle.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True
        return True

    def cut(self) -> None:
        """By the watchdog: whatever the other thread waits for ends now."""
        self._was_cut = True
        self._end()

    def _end(self) -> None:
        if self._handle is not None:
            with suppress(OSError):
                self._handle.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._watchdog.forget(self)
        for sock in (self._sock, self._handle):
            if sock is not None:
                sock.close()
        self._sock = self._handle = None


class _Reader:
    """Stands in for a socket of http.client and for the file that this makes of it; begins with
    what was already read. `rest` is what was read and not yet asked for."""

    def __init__(self, read: bytes, sock: socket.socket) -> None:
        self.rest = read
        self._sock = sock
        self._left = LONGEST_ANSWER_BYTES

    def makefile(self, mode: str) -> Self:
        return self

    def readline(self, limit: int) -> bytes:
        """A whole line: if the connection ends within the headers, their rest is not known."""
        while (end := self.rest.find(b"\n", 0, limit)) < 0 and len(self.rest) < limit:
            if not self._fill():
                raise http.client.RemoteDisconnected("the connection ended within the answer")
        return self._take(end + 1 if end >= 0 else limit)

    def read(self, size: int) -> bytes:
        if size < 0:  # of a chunk: http.client believes it, and would read without end
            raise http.client.HTTPException(f"a chunk of {size} bytes")
        while len(self.rest) < size and self._fill():
            pass
        return self._take(size)

    def flush(self) -> None:
        pass

    def close(self) -> None:
        """The connection stays: another answer may come."""

    def _fill(self) -> bool:
        more = self._sock.recv(READ_BYTES)
        self.rest += more
        self._left -= len(more)
        if self._left < 0:
            raise http.client.HTTPException(f"an answer of more than {LONGEST_ANSWER_BYTES} bytes")
        return bool(more)

    def _take(self, size: int) -> bytes:
        taken, self.rest = self.rest[:size], self.rest[size:]
        return taken


def _length_of(status: int, headers: bytes) -> int | None:
    """The length of a usual answer's body; None if that is not simple."""
    lengths = CONTENT_LENGTH.findall(headers)
    if len(lengths) != headers.lower().count(b"\r\ncontent-length:"):
        return None
    if status in WITHOUT_BODY:
        return 0 if lengths in ([], [b"0"]) else None
    return int(lengths[0]) if len(lengths) == 1 else None


def _is_framed_once(response: http.client.HTTPResponse) -> bool:
    """Whether its end, where the next answer begins, is given in one way only."""
    lengths = response.headers.get_all("content-length", [])
    if len(lengths) + len(response.headers.get_all("transfer-encoding", [])) > 1:
        return False
    if response.status in WITHOUT_BODY:
        return response.length == 0 and lengths in ([], ["0"]) and not response.chunked
    return response.status not in range(100, 200)


class Lines:
    """Those that are open and idle, by endpoint."""

    def __init__(self, resolve: Resolve, context: Callable[[], ssl.SSLContext]) -> None:
        self.watchdog = Watchdog()
        self._resolve = resolve
        self._context = context
        self._lock = threading.Lock()
        self._idle: dict[Endpoint, list[Line]] = {}
        self._swept = 0.0
        self._resolving: set[Future[Sequence[Address]]] = set()
        self._closed = False

    def take(self, endpoint: Endpoint, deadline: float) -> Line:
        while True:
            with self._lock:
                idle = self._idle.get(endpoint)
                line = idle.pop() if idle else None
            if line is None:
                break
            if time.monotonic() - line.idle_since < IDLE_SECONDS and not line.dropped:
                return line
            line.close()
        return self.open(endpoint, deadline)

    def open(self, endpoint: Endpoint, deadline: float) -> Line:
        """A new one, which shows that the endpoint is there now."""
        line = Line(endpoint, self.watchdog)
        try:
            line.connect(self._resolved(endpoint, deadline), self._context(), deadline)
        except BaseException:
            line.close()
            raise
        return line

    def give_back(self, line: Line) -> None:
        now = line.idle_since = time.monotonic()
        with self._lock:
            old = self._old(now)
            if self._closed:
                old.append(line)
            else:
                self._idle.setdefault(line.endpoint, []).append(line)
        for each in old:
            each.close()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            idle = [line for lines in self._idle.values() for line in lines]
            self._idle.clear()
            for found in self._resolving:
                with suppress(InvalidStateError):  # it has just been found
                    found.set_exception(Closed())
        for line in idle:
            line.close()
        self.watchdog.close()

    def _old(self, now: float) -> list[Line]:
        """Of all endpoints, now and then: some are never used again."""
        if now - self._swept < IDLE_SECONDS:
            return []
        self._swept = now
        old: list[Line] = []
        for endpoint, lines in list(self._idle.items()):
            old += [line for line in lines if now - line.idle_since >= IDLE_SECONDS]
            if kept := [line for line in lines if now - line.idle_since < IDLE_SECONDS]:
                self._idle[endpoint] = kept
            else:
                del self._idle[endpoint]
        return old

    def _resolved(self, endpoint: Endpoint, deadline: float) -> Sequence[Address]:
        found = beside(lambda: self._resolve(endpoint))
        with self._lock:
            if self._closed:
                raise Closed
            self._resolving.add(found)
        try:
            return in_time(found, deadline)
        finally:
            with self._lock:
                self._resolving.discard(found)


def _left(deadline: float) -> float:
    return max(0.001, deadline - time.monotonic())

"""
A server of HTTP on loopback that keeps what it gets, and misbehaves on request.

A thread of the test's own process, not a child: so a test can inspect what arrived and decide on
each answer.
"""

import contextlib
import socket
import ssl
import struct
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, Self

from dev.services.waiting import wait_until


class Got(NamedTuple):
    method: str
    path: str
    headers: list[tuple[str, str]]
    """Names in lower case."""
    body: bytes

    def header(self, name: str) -> str | None:
        found = [value for key, value in self.headers if key == name]
        return found[-1] if found else None


class Reply(NamedTuple):
    status: int = 200
    body: bytes = b"ok"
    headers: dict[str, str] = {}  # noqa: RUF012 - never changed


class Misbehave(NamedTuple):
    """Instead of an answer: does this with the connection, and closes it unless it is kept."""

    do: Callable[["Handler"], None]
    keeps: bool = False
    """For a whole answer that does not announce `connection: close`: the client may send its next
    request at once, and one that crosses with the end of the connection is in doubt."""


Answer = Callable[[Got], Reply | Misbehave]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: "HttpServer"

    def handle_any(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        headers = [(name.lower(), value) for name, value in self.headers.items()]
        got = Got(self.command, self.path, headers, body)
        reply = self.server.answer(got)
        if isinstance(reply, Misbehave):
            self.close_connection = not reply.keeps
            with contextlib.suppress(OSError):
                reply.do(self)
            return
        if self.command != "GET" and reply.status < 300:
            self.server.got.append(got)
        self.send_response(reply.status)
        for name, value in reply.headers.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(reply.body)))
        self.end_headers()
        self.wfile.write(reply.body)

    do_GET = do_POST = do_PUT = do_PATCH = handle_any

    def log_message(self, format: str, *args: Any) -> None:
        pass

    # Ways to misbehave ----------------------------------------------------------------------

    def reset(self) -> None:
        """The request has arrived, and its answer is lost."""
        linger = struct.pack("ii", 1, 0)
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.connection.close()

    def hang(self) -> None:
        self.server.released.wait(60)

    def slow_headers(self) -> None:
        self.trickle(b"HTTP/1.1 200 OK\r\n" + b"x-slow: yes\r\n" * 1000)

    def endless_body(self) -> None:
        self.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while not self.server.released.is_set():
            self.wfile.write(b"more " * 1000)

    def trickling_body(self) -> None:
        self.wfile.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n")
        self.trickle(b"x" * 1000)

    def trickle(self, data: bytes) -> None:
        for n in range(len(data)):
            self.wfile.write(data[n : n + 1])
            self.wfile.flush()
            if self.server.released.wait(0.05):
                return


def fine(got: Got) -> Reply:
    return Reply()


class HttpServer(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.tls = tls
        self.got: list[Got] = []
        self.connections = 0
        self.answer: Answer = fine
        self.released = threading.Event()
        """Set when what hangs may end."""
        self._thread = threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True)

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    @property
    def url(self) -> str:
        return f"http{'s' if self.tls else ''}://127.0.0.1:{self.port}"

    def received(self, count: int, timeout: float = 20.0) -> list[Got]:
        """Wait for so many; all that there are."""
        wait_until(lambda: len(self.got) >= count, timeout, f"{count} requests")
        return list(self.got)

    def get_request(self) -> tuple[socket.socket, Any]:
        sock, address = super().get_request()
        self.connections += 1
        if self.tls is not None:
            sock.settimeout(5)
            sock = self.tls.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
        return sock, address

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # clients that leave are what tests are about

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.released.set()
        self.shutdown()
        self.server_close()


def dead_port() -> int:
    """Where nobody listens."""
    with socket.socket() as tried:
        tried.bind(("127.0.0.1", 0))
        return int(tried.getsockname()[1])

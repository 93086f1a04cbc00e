"""
A server that says what a test wants: for answers of Amazon's that ElasticMQ never gives (it knows
no rights and no quotas), and for those that nobody should give.
"""

import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Asked:
    line: str
    headers: dict[str, str]
    """Names in small letters."""
    body: bytes

    @property
    def json(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body)
        return found

    @property
    def authorization(self) -> str:
        return self.headers.get("authorization", "")

    @property
    def target(self) -> str:
        return self.headers.get("x-amz-target", "").rpartition(".")[2]


Say = Callable[[Asked, socket.socket], bytes | None]
"""What to answer; None: nothing more, and the connection ends."""


class Answering:
    def __init__(self, url: str) -> None:
        self.url = url
        self.asked: list[Asked] = []

    def queue_url(self, name: str = "orders") -> str:
        return f"{self.url}/123456789012/{name}"


@contextmanager
def answering(say: Say, tls: ssl.SSLContext | None = None) -> Iterator[Answering]:
    listener = socket.create_server(("127.0.0.1", 0))
    scheme = "http" if tls is None else "https"
    server = Answering(f"{scheme}://127.0.0.1:{listener.getsockname()[1]}")
    open_ones: list[socket.socket] = []
    threads: list[threading.Thread] = []

    def start(body: Callable[[], None]) -> None:
        threads.append(threading.Thread(target=body, daemon=True))
        threads[-1].start()

    def serve(sock: socket.socket) -> None:
        with suppress(OSError), sock, sock.makefile("rb") as stream:
            while asked := read(stream):
                server.asked.append(asked)
                answer = say(asked, sock)
                if answer is None:
                    return
                sock.sendall(answer)

    def accept() -> None:
        with suppress(OSError):
            while True:
                sock, _ = listener.accept()
                open_ones.append(sock)
                if tls is not None:
                    try:
                        sock = tls.wrap_socket(sock, server_side=True)
                    except (OSError, ssl.SSLError):
                        continue
                    open_ones.append(sock)
                start(lambda sock=sock: serve(sock))  # type: ignore[misc]

    start(accept)
    try:
        yield server
    finally:
        for sock in (listener, *open_ones):
            with suppress(OSError):
                socket.socket.shutdown(sock, socket.SHUT_RDWR)
            sock.close()
        for thread in threads:
            thread.join(5)


def read(stream: Any) -> Asked | None:
    line = stream.readline().decode().strip()
    if not line:
        return None
    headers: dict[str, str] = {}
    while text := stream.readline().decode().strip():
        name, _, value = text.partition(":")
        headers[name.lower()] = value.strip()
    return Asked(line, headers, stream.read(int(headers.get("content-length", 0))))


def answer(status: int, body: object, **headers: str) -> bytes:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status} Whatever", f"Content-Length: {len(content)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + content


def error(status: int, code: str, text: str = "no", **headers: str) -> Say:
    return lambda asked, sock: answer(status, {"__type": code, "message": text}, **headers)


def done(asked: Asked, sock: socket.socket) -> bytes:
    """As SQS does, if all is well."""
    if asked.target != "SendMessageBatch":
        return answer(200, {"Attributes": {}})
    entries = asked.json["Entries"]
    return answer(200, {"Successful": [{"Id": e["Id"], "MessageId": "m"} for e in entries]})

"""A proxy between publisher and server, which cuts the connection when the test's plan says so."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

Cut = Callable[[str, bytes], bool]
"""Of a direction, `to server` or `to client`, and what is on its way: is this the moment? Then
neither side gets it."""


@contextmanager
def proxy(port: int, cut: Cut) -> Iterator[str]:
    """The URL of a proxy for the server on that port."""
    opened: list[socket.socket] = []
    threads: list[threading.Thread] = []

    def start(body: Callable[[], None]) -> None:
        threads.append(threading.Thread(target=body, daemon=True))
        threads[-1].start()

    def close(*sockets: socket.socket) -> None:
        for sock in sockets:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()

    def pump(direction: str, source: socket.socket, to: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                if cut(direction, data):
                    break
                to.sendall(data)
        close(source, to)

    def accept() -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                server = socket.create_connection(("127.0.0.1", port))
                opened.extend((client, server))
                start(lambda c=client, s=server: pump("to server", c, s))  # type: ignore[misc]
                start(lambda c=client, s=server: pump("to client", s, c))  # type: ignore[misc]

    listener = socket.create_server(("127.0.0.1", 0))
    start(accept)
    try:
        yield f"nats://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        close(listener, *opened)
        for thread in threads:
            thread.join(5)

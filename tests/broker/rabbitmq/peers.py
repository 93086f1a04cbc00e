"""Between publisher and server, or instead of the server: what real networks do."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

Passes = Callable[[bytes], bool]
"""Of what comes in one piece: is it handed on? If not, both sides are cut off."""

Serve = Callable[[socket.socket], None]


@contextmanager
def listening(serve: Serve) -> Iterator[str]:
    """`host:port` of a peer that treats every connection like this, each on a thread."""
    opened: list[socket.socket] = []

    def run(client: socket.socket) -> None:
        with suppress(OSError):
            serve(client)
        _end(client)

    def accept() -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                opened.append(client)
                threading.Thread(target=run, args=(client,), daemon=True).start()

    listener = socket.create_server(("127.0.0.1", 0))
    acceptor = threading.Thread(target=accept, daemon=True)
    acceptor.start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        _end(listener)
        for client in opened:
            _end(client)
        acceptor.join(5)


def to_server(port: int, to_server: Passes, to_client: Passes) -> Serve:
    def pump(source: socket.socket, to: socket.socket, passes: Passes) -> None:
        with suppress(OSError):
            while (data := source.recv(1 << 16)) and passes(data):
                to.sendall(data)
        _end(source)
        _end(to)

    def serve(client: socket.socket) -> None:
        with socket.create_connection(("127.0.0.1", port)) as server:
            back = threading.Thread(target=pump, args=(server, client, to_client), daemon=True)
            back.start()
            pump(client, server, to_server)
            back.join(5)

    return serve


def _end(sock: socket.socket) -> None:
    with suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
    sock.close()

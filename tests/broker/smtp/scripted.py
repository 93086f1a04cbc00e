"""
A mail server of the tests' own that misbehaves at a chosen moment, for what a sound one never does.

It listens on loopback, keeps what it took, and delivers nothing.
"""

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress


class Gone(Exception):
    """Raised by a script: the connection is cut here."""


class Session:
    """One connection of a client."""

    def __init__(self, sock: socket.socket, server: "ScriptedServer") -> None:
        self.sock = sock
        self.server = server
        self._file = sock.makefile("rb")

    def say(self, line: str) -> None:
        self.sock.sendall(f"{line}\r\n".encode("latin-1"))

    def run(self) -> None:
        server = self.server
        self.say(server.answer("CONNECT", "220 test"))
        while line := self._file.readline():
            word = line.split()[0].decode().upper()
            server.commands.append(line.decode().strip())
            if word == "EHLO":
                for extension in server.extensions:
                    self.say(f"250-{extension}")
                self.say("250 test")
            elif word == "DATA":
                reply = server.answer("DATA", "354 go on")
                self.say(reply)
                if reply.startswith("354"):
                    self._take_message()
            elif word == "QUIT":
                self.say("221 bye")
                return
            else:
                self.say(server.answer(word, "250 ok"))

    def _take_message(self) -> None:
        lines = []
        while (line := self._file.readline()) not in (b".\r\n", b""):
            lines.append(line)
        if line:
            self.server.taken.append(b"".join(lines))
        self.say(self.server.answer("DOT", "250 queued"))


class ScriptedServer:
    def __init__(self, tls: ssl.SSLContext | None) -> None:
        self._tls = tls
        self.extensions = ["PIPELINING", "SIZE 1000000"]
        self.taken: list[bytes] = []
        self.commands: list[str] = []
        self.connections = 0
        self.script: dict[str, Callable[[], str]] = {}
        """By moment (CONNECT, a command, DOT): the answer; or Gone."""
        self.stopped = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=50)
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def answer(self, moment: str, usual: str) -> str:
        return self.script.get(moment, lambda: usual)()

    def silent(self) -> str:
        """For a script: no answer until the test ends."""
        self.stopped.wait(60)
        raise Gone

    def stop(self) -> None:
        self.stopped.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for sock in self._sockets:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                sock, _ = self._listener.accept()
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self.connections += 1
                self._sockets.append(sock)
                thread = threading.Thread(target=self._serve, args=(sock,))
                self._threads.append(thread)
                thread.start()

    def _serve(self, sock: socket.socket) -> None:
        with sock, suppress(Gone, OSError):
            with self._tls.wrap_socket(sock, server_side=True) if self._tls else sock as used:
                self._sockets.append(used)
                Session(used, self).run()
            return
        with suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)


@contextmanager
def scripted(tls: ssl.SSLContext | None = None) -> Iterator[ScriptedServer]:
    """With `tls`, encrypted from the first byte."""
    server = ScriptedServer(tls)
    try:
        yield server
    finally:
        server.stop()


def gone() -> str:
    raise Gone

"""
One connection to a NATS server: its protocol over a socket, for one call at a time.

Opened by `publisher`, used by `sender` and `streams`. Every method has a deadline, also with a
server that sends a byte at a time or reads nothing: the socket never blocks, and only `_wait`
waits. After `Lost` the connection cannot be used again.
"""

import json
import re
import secrets
import select
import socket
import ssl
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from outbox_core.contract.publishers.nats import NatsSettings
from outbox_core.errors import BrokerRefused, OutboxError, PublisherError
from outbox_relay.publishers.nats.address import address_of
from outbox_relay.publishers.nats.errors import DENIED
from outbox_relay.publishers.nats.login import login
from outbox_relay.publishers.resolving import reach
from outbox_relay.publishers.tls import tls_context

PORTION_BYTES = 1 << 18
LONGEST_WAIT_SECONDS = 0.25
"""Between two checks whether we are to stop."""
MOST_BYTES_WHILE_IDLE = 1 << 17
"""A line now and then is usual. Reading more would take time that the call does not have."""
MOST_BYTES = 64 << 20
"""Of all answers to one exchange: a stream's settings have a few kB, for up to a thousand
streams."""
PUBLISH_DENIED = 'Permissions Violation for Publish to "'
ESCAPED = re.compile(r"\\(?:u([0-9a-f]{4})|U([0-9a-f]{8})|(.))")
"""In a subject as the server quotes it, by Go's %q."""
NOT_HEARD = ("permissions violation for subscription", "maximum subscriptions exceeded")
"""Errors about a connection's only subscription, that to its inbox."""
NOT_LET_IN = ("authorization", "authentication", "tls", "expired", "revoked", *NOT_HEARD)
WOULD_BLOCK = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Lost(Exception):
    """The server closed the connection, did not answer in time, or broke the protocol."""


class Reply(NamedTuple):
    status: int
    """503 if nothing answers there, DENIED, or 0 for a usual answer."""
    body: bytes


class Connection:
    def __init__(self, settings: NatsSettings, url: str, until: float) -> None:
        """Raises PublisherError with the reason if the server does not let us in by then."""
        self.url = url
        self.stop_at = float("inf")
        self.used_at = time.monotonic()
        self.broken = False
        """Not to be used again."""
        self.leaving = False
        """The server is about to stop: this call may end, the next one goes elsewhere."""
        self.info: Mapping[str, Any] = {}
        self.version: tuple[int, ...] = ()
        self.max_payload = 0
        self._sock: socket.socket
        self._buffer = bytearray()
        self._room = MOST_BYTES
        self._replies: dict[int, Reply] = {}
        self._waiting: dict[int, str] = {}
        self._next = 0
        self._pings = 0
        self._pongs = 0
        self._error = ""
        self.why_lost = ""
        self._inbox = f"_INBOX.{secrets.token_hex(11)}"
        try:
            self._open(settings, until)
        except ssl.SSLError as error:
            self.close()
            raise BrokerRefused(f"NATS at {url}: TLS failed: {error}") from None
        except (OSError, Lost) as error:
            self.close()
            refused = any(word in str(error).lower() for word in NOT_LET_IN)
            raise (BrokerRefused if refused else PublisherError)(
                f"NATS at {url} does not answer: {error}"
            ) from None
        except BaseException as error:
            self.close()
            if isinstance(error, OutboxError) or not isinstance(error, Exception):
                raise
            # Such as a nonce that is not text: whatever the server sends, it is not a defect of
            # ours.
            text = f"NATS at {url} cannot be used: {type(error).__name__}"
            raise PublisherError(text) from error

    def address(self, subject: str) -> tuple[int, str]:
        """A number for an answer to expect, and where the server is to send it."""
        self._next += 1
        self._waiting[self._next] = subject
        return self._next, f"{self._inbox}.{self._next}"

    def exchange(self, data: Sequence[bytes], until: float) -> dict[int, Reply]:
        """Send it, wait for all answers that were asked for by `address`. Those that are missing
        did not come: then the connection is broken, and `why_lost` has the reason."""
        left = memoryview(b"".join(data))
        self.used_at = time.monotonic()
        self._room = MOST_BYTES
        try:
            while left or self._waiting:
                moved = False
                if left:
                    with suppress(*WOULD_BLOCK):
                        left = left[self._sock.send(left[:PORTION_BYTES]) :]
                        moved = True
                elif self._pings:
                    self._pings = 0
                    left = memoryview(b"PONG\r\n")
                if self._receive() or moved:
                    self._check_time(until)
                else:
                    self._wait(bool(left), until)
        except (OSError, Lost) as error:
            self.broken = True
            self.why_lost = str(error)
        replies, self._replies = self._replies, {}
        self._waiting = {}
        return replies

    def request(self, asked: Sequence[tuple[str, object]], until: float) -> list[Reply | None]:
        """Call an API of the server; None where no answer came."""
        data, numbers = [], []
        for subject, body in asked:
            number, reply = self.address(subject)
            payload = json.dumps(body).encode() if body is not None else b""
            data.append(f"PUB {subject} {reply} {len(payload)}\r\n".encode() + payload + b"\r\n")
            numbers.append(number)
        replies = self.exchange(data, until)
        return [replies.get(number) for number in numbers]

    def is_open(self) -> bool:
        """As far as this side knows; takes no time."""
        self._room = MOST_BYTES_WHILE_IDLE
        if not self.broken:
            try:
                while self._receive():
                    pass
            except (OSError, Lost):
                self.broken = True
        return not self.broken and not self.leaving

    def is_alive(self, until: float) -> bool:
        """Ping the server; also answers its own pings from while the connection was idle."""
        try:
            self._ping(until)
        except (OSError, Lost):
            self.broken = True
        return not self.broken

    def close(self) -> None:
        self.broken = True
        with suppress(OSError, AttributeError):
            self._sock.close()

    def _open(self, settings: NatsSettings, until: float) -> None:
        host, port = address_of(self.url)
        self._sock = reach(host, port, until)
        self._sock.setblocking(False)
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        while not self.info:
            if self._receive():
                self._check_time(until)
            else:
                self._wait(False, until)
        wanted = settings.tls is not None or self.url.startswith("tls:")
        if wanted or self.info.get("tls_required"):
            self._wrap(settings, host, until)
        options = {
            "verbose": False,
            "pedantic": False,
            "headers": True,
            "no_responders": True,
            "echo": False,
            "lang": "python",
            "version": "1",
            "protocol": 1,
            "name": "outbox-relay",
            **login(settings, str(self.info.get("nonce", ""))),
        }
        hello = f"CONNECT {json.dumps(options)}\r\nSUB {self._inbox}.* 1\r\n"
        self._ping(until, hello.encode())

    def _wrap(self, settings: NatsSettings, host: str, until: float) -> None:
        if self._buffer:
            raise Lost("it sent more than it may before TLS")
        self._sock = tls_context(settings.tls, "nats.tls").wrap_socket(
            self._sock, server_hostname=host, do_handshake_on_connect=False
        )
        while True:
            try:
                self._sock.do_handshake()
                return
            except ssl.SSLWantReadError:
                self._wait(False, until)
            except ssl.SSLWantWriteError:
                self._wait(True, until)

    def _ping(self, until: float, before: bytes = b"") -> None:
        """A PONG shows that all before it was read, and that we are let in."""
        left = memoryview(before + b"PONG\r\n" * self._pings + b"PING\r\n")
        self._pings, seen = 0, self._pongs
        while left or self._pongs == seen:
            moved = False
            if left:
                with suppress(*WOULD_BLOCK):
                    left = left[self._sock.send(left) :]
                    moved = True
            if self._receive() or moved:
                self._check_time(until)
            else:
                self._wait(bool(left), until)

    def _check_time(self, until: float) -> float:
        """The seconds that are left. Also checked while bytes come: they may never end."""
        left = min(until, self.stop_at) - time.monotonic()
        if left <= 0:
            raise Lost(f"no answer in time{self._because}")
        return left

    def _wait(self, to_write: bool, until: float) -> None:
        left = self._check_time(until)
        poll = select.poll()
        poll.register(self._sock, select.POLLIN | (select.POLLOUT if to_write else 0))
        poll.poll(max(1, 1000 * min(LONGEST_WAIT_SECONDS, left)))

    def _receive(self) -> bool:
        """Whether anything came."""
        try:
            data = self._sock.recv(PORTION_BYTES)
        except WOULD_BLOCK:
            return False
        if not data:
            raise Lost(f"the server closed the connection{self._because}")
        self._buffer += data
        self._room -= len(data)
        if self._room < 0:
            raise Lost("it sent more than any server does")
        try:
            self._parse()
        except Lost:
            raise
        except Exception as error:  # of any kind: nothing that the peer sends is a defect of ours
            raise Lost(f"it sent what is not NATS ({type(error).__name__})") from error
        return True

    def _parse(self) -> None:
        buffer, at = self._buffer, 0
        while (end := buffer.find(b"\r\n", at)) >= 0:
            line = bytes(buffer[at:end])
            head = line[:4].upper()
            if head in (b"MSG ", b"HMSG"):
                size = int(line[line.rindex(b" ") :])
                if size < 0:
                    raise Lost("it sent a message of negative size")
                if len(buffer) < end + size + 4:
                    break
                body = bytes(buffer[end + 2 : end + 2 + size])
                end += size + 2
                if buffer[end : end + 2] != b"\r\n":
                    raise Lost("it sent a message of another size than announced")
                self._take(line, body)
            else:
                self._obey(head, line)
            at = end + 2
        del buffer[:at]

    def _take(self, line: bytes, body: bytes) -> None:
        words = line.split()
        number = int(words[1].rpartition(b".")[2])
        status = 0
        if words[0].upper() == b"HMSG":
            headers, body = body[: int(words[-2])], body[int(words[-2]) :]
            first = headers.split(b"\r\n", 1)[0].split()
            status = int(first[1]) if len(first) > 1 and first[1].isdigit() else 0
        if self._waiting.pop(number, None) is not None:
            self._replies[number] = Reply(status, body)

    def _obey(self, head: bytes, line: bytes) -> None:
        if head == b"PING":
            self._pings += 1
        elif head == b"PONG":
            self._pongs += 1
        elif head == b"INFO":
            info = json.loads(line[5:])
            parts = str(info.get("version", "")).split("-")[0].split(".")
            self.version = tuple(int(part) for part in parts if part.isdigit())
            self.max_payload = int(info.get("max_payload", 1 << 20))
            if self.max_payload <= 0:  # otherwise every event would be too large
                raise Lost(f"its max_payload is {self.max_payload}")
            self.info = info
            self.leaving |= bool(self.info.get("ldm"))
        elif head == b"-ERR":
            text = line[5:].decode(errors="replace").strip()
            self._note_error(text.removeprefix("'").removesuffix("'"))

    def _note_error(self, text: str) -> None:
        self._error = text
        if text.lower().startswith(NOT_HEARD):
            # Everything would be stored, but no answer would reach us: stored again at each
            # attempt.
            raise Lost(f"none of its answers would reach us: {text}")
        if text.startswith(PUBLISH_DENIED):
            # No answer will come for what was published there.
            subject = ESCAPED.sub(unescaped, text.removeprefix(PUBLISH_DENIED).removesuffix('"'))
            for number in [n for n, s in self._waiting.items() if s == subject]:
                del self._waiting[number]
                self._replies[number] = Reply(DENIED, text.encode())

    @property
    def _because(self) -> str:
        return f" ({self._error})" if self._error else ""


def unescaped(found: re.Match[str]) -> str:
    number = found[1] or found[2]
    return chr(int(number, 16)) if number else found[3]

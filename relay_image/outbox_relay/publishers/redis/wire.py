"""
One connection to Redis: commands out, answers in, each with a deadline.

Over sockets, with hiredis for the protocol, and not through redis-py: its timeouts are for one read
from the socket, so a server that trickles bytes holds a call for as long as it likes. Here every
wait has the deadline of the whole call.
"""

import re
import select
import socket
import ssl
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from hiredis import ProtocolError, Reader, pack_command

from outbox_core.contract.publishers.redis import RedisSettings
from outbox_core.errors import SettingsError
from outbox_relay.publishers.redis.errors import ReplyError
from outbox_relay.publishers.resolving import look_up
from outbox_relay.publishers.tls import tls_context

DEFAULT_PORT: Final = 6379
CLIENT_NAME: Final = "outbox-relay"
SEND_BYTES: Final = 1 << 20
RECEIVE_BYTES: Final = 1 << 16
LARGEST_ANSWER_BYTES: Final = 1 << 20
"""Many times the longest answer of Redis to anything that we ask."""
MOST_ELEMENTS: Final = 100_000
"""Of an answer's lists together; the longest that Redis sends us has one for each entry of a
transaction."""
LIST: Final = re.compile(rb"[*%~>|]([0-9]{1,19})\r")
"""The beginning of a list, or of one of RESP3's other collections."""
LONGEST_LIST_HEAD_BYTES: Final = 20
"""How much of such a beginning is kept, because its rest may come later."""
CONNECT_SECONDS: Final = 5.0
"""For one address: a name may have several, of which the first is away."""

PENDING: Final = object()

Word = str | bytes | int


class Broken(Exception):
    """The server does not answer, or the connection ended. What was on its way is in doubt."""

    def __init__(self, code: str, text: str, refused: bool = False) -> None:
        super().__init__(text)
        self.code = code
        self.refused = refused
        """The server answers, but a certificate is wrong."""

    @classmethod
    def out_of_step(cls) -> "Broken":
        return cls("OUT_OF_STEP", "Redis answered something that it was not asked")


class Address(NamedTuple):
    host: str
    port: int
    database: int

    @classmethod
    def of(cls, settings: RedisSettings) -> "Address":
        try:
            parts = urlsplit(settings.url)
            port = DEFAULT_PORT if parts.port is None else parts.port
            (parts.hostname or "").encode("idna")  # as connecting does it
        except ValueError as error:
            raise SettingsError(f"redis.url {settings.url}: {error}") from None
        return cls(parts.hostname or "", port, int(parts.path.strip("/") or 0))

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


class Login(NamedTuple):
    """All that is read from files and variables, again for each connection."""

    words: Sequence[str]
    context: ssl.SSLContext | None

    @classmethod
    def read(cls, settings: RedisSettings) -> "Login":
        words: list[str] = []
        if settings.password is not None:
            if settings.username is not None:
                words.append(settings.username.read("redis.username"))
            words.append(settings.password.read("redis.password"))
        return cls(words, tls_context(settings.tls, "redis.tls") if settings.with_tls else None)


class Wire:
    """For one call at a time; `abort` may be called by others."""

    def __init__(self, settings: RedisSettings, until: float) -> None:
        """Connects and logs in. Raises Broken, ReplyError or SettingsError."""
        self.address = Address.of(settings)
        login = Login.read(settings)
        self._reader = Reader(
            protocolError=ProtocolError, replyError=ReplyError, notEnoughData=PENDING
        )
        self._seen = b""
        """The end of what was received, because a list's length may come in two parts."""
        self._socket = self._connect(login.context, until)
        try:
            self._introduce(login.words, until)
        except BaseException:
            self.close()
            raise

    def ask(self, *words: Word, until: float) -> object:
        """One command, and its answer; an error of the server's is raised."""
        self.send(pack(*words), until)
        reply = self.read(until)
        if isinstance(reply, ReplyError):
            raise reply
        return reply

    def send(self, data: bytes, until: float) -> None:
        try:
            rest = memoryview(data)
            while rest:
                self._limit(until)
                rest = rest[self._socket.send(rest[:SEND_BYTES]) :]
        except OSError as error:
            raise self._broken(error) from None

    def read(self, until: float) -> object:
        """The next answer; an error of the server's is returned, as it is one of many answers."""
        reader = self._reader
        size = elements = 0
        try:
            while (reply := reader.gets()) is PENDING:
                self._limit(until)
                data = self._socket.recv(RECEIVE_BYTES)
                if not data:
                    raise Broken(
                        "CONNECTION_LOST", f"Redis at {self.address} closed the connection"
                    )
                # hiredis keeps all of an answer until it ends, and makes room for a list as soon as
                # it knows its length: without bounds, the peer decides how much memory we take.
                seen = self._seen + data
                self._seen = seen[-LONGEST_LIST_HEAD_BYTES:]
                size += len(data)
                elements += sum(map(int, LIST.findall(seen)))
                if size > LARGEST_ANSWER_BYTES or elements > MOST_ELEMENTS:
                    raise Broken("NOT_REDIS", f"the answer of {self.address} does not end")
                reader.feed(data)
        except Broken:
            raise
        except OSError as error:
            raise self._broken(error) from None
        except Exception as error:  # whatever hiredis raises for bytes that are not an answer
            text = f"the server at {self.address} does not speak Redis's protocol: {error}"
            raise Broken("NOT_REDIS", text) from None
        return reply

    def is_alive(self) -> bool:
        """Between calls there is nothing to read. If there is, it is the connection's end, a last
        error, or an answer too many, after which each answer would be taken for that to the next
        command."""
        if self._reader.has_data():
            return False
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return not poll.poll(0)

    def abort(self) -> None:
        """A thread that waits for an answer fails at once."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with suppress(OSError):
            self._socket.close()

    def _connect(self, context: ssl.SSLContext | None, until: float) -> socket.socket:
        try:
            found = look_up(self.address.host, self.address.port, until)
        except OSError as error:
            text = f"{self.address.host}: {error.strerror or error}"
            raise Broken("CONNECT_FAILED", text) from None
        why: Broken | None = None
        for family, kind, protocol, _, place in found:
            plain = socket.socket(family, kind, protocol)
            try:
                self._limit(min(until, time.monotonic() + CONNECT_SECONDS), plain)
                plain.connect(place)
                plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if context is None:
                    return plain
                self._limit(until, plain)
                return context.wrap_socket(plain, server_hostname=self.address.host)
            except OSError as error:
                plain.close()
                why = self._broken(error, "CONNECT_FAILED")
        assert why is not None  # look_up finds something, or raises
        raise why

    def _introduce(self, login: Sequence[str], until: float) -> None:
        greetings: list[tuple[str, ...]] = [("CLIENT", "SETNAME", CLIENT_NAME)]
        if self.address.database:
            greetings.insert(0, ("SELECT", str(self.address.database)))
        if login:
            greetings.insert(0, ("AUTH", *login))
        self.send(b"".join(pack(*words) for words in greetings), until)
        for words in greetings:
            reply = self.read(until)
            # The name is for people who list connections: without the right to set it, all else
            # works.
            if isinstance(reply, ReplyError) and (words[0] != "CLIENT" or reply.code == "NOAUTH"):
                raise reply.without(login[-1] if login else "")

    def _limit(self, until: float, of: socket.socket | None = None) -> None:
        left = until - time.monotonic()
        if left <= 0:
            raise TimeoutError
        (of or self._socket).settimeout(left)

    def _broken(self, error: OSError, code: str = "CONNECTION_LOST") -> Broken:
        if isinstance(error, ssl.SSLCertVerificationError):
            text = f"the certificate of {self.address} is not trusted: {error.verify_message}"
            return Broken("TLS_FAILED", text, refused=True)
        if isinstance(error, TimeoutError):
            return Broken("NO_ANSWER", f"Redis at {self.address} does not answer")
        why = error.strerror or str(error) or type(error).__name__
        if isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError):
            return Broken("TLS_FAILED", f"no TLS with {self.address}: {why}", refused=True)
        return Broken(code, f"{self.address}: {why}")


def pack(*words: Word) -> bytes:
    packed = pack_command(words)  # type: ignore[arg-type]  # its stub allows one word only
    assert isinstance(packed, bytes)
    return packed

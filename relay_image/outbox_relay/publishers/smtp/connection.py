"""
One connection to the mail server: made, logged in, and used for one message after the other.

smtplib speaks the protocol; what it does not know is here: a time limit for everything together,
several commands in one write (PIPELINING), and how far exactly a message had come when its
connection was lost.
"""

import re
import smtplib
import socket
import ssl
import time
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from io import BufferedReader
from typing import Any, Final

from outbox_core.contract.publishers.smtp import SmtpSettings
from outbox_core.errors import BrokerRefused, PublisherError
from outbox_core.model.attempt import Acked, Refused
from outbox_relay.publishers.messages import refused
from outbox_relay.publishers.resolving import reach
from outbox_relay.publishers.smtp.errors import GOING_AWAY, LETS_NOBODY_IN, Stage, refusal
from outbox_relay.publishers.smtp.messages import Letter
from outbox_relay.publishers.tls import tls_context

PIPELINED_COMMANDS: Final = 100
"""Commands in one write: their answers must fit into what the network holds."""
LONGEST_RESULT_CHARS: Final = 500
LONGEST_REPLY_BYTES: Final = 64_000
LEAST_SECONDS: Final = 0.01
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]+")
_SIZE: Final = re.compile(r"[0-9]{1,20}")

Reply = tuple[int, str]


class Lost(Exception):
    """The connection is gone, and with it the answer."""


class Client(smtplib.SMTP):
    """smtplib's client, whose socket another thread can cut at any moment: even during a TLS
    handshake, when only the handshake has the socket."""

    def __init__(self, settings: SmtpSettings, context: ssl.SSLContext, timeout: float) -> None:
        # smtplib would ask the network for its own name, without a time limit.
        super().__init__(local_hostname=settings.helo_name or socket.gethostname(), timeout=timeout)
        self._implicit = context if settings.start_tls == "Implicit" else None
        self._cuttable: socket.socket | None = None
        self._is_cut = False

    def _get_socket(self, host: str, port: int, timeout: float) -> Any:
        until = time.monotonic() + timeout
        plain = reach(host, port, until)
        self._cuttable = plain.dup()
        if self._is_cut:
            self.cut()
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._implicit is None:
            return plain
        return self._implicit.wrap_socket(plain, server_hostname=host)

    def getreply(self) -> tuple[int, bytes]:
        if self.file is None and self.sock is not None:
            self.file = _Replies(self.sock.makefile("rb"))
        if self.file is not None:
            self.file.left = LONGEST_REPLY_BYTES
        return super().getreply()

    def cut(self) -> None:
        """From any thread: reads and writes fail at once."""
        self._is_cut = True
        if self._cuttable is not None:
            with suppress(OSError):
                self._cuttable.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        super().close()
        if self._cuttable is not None:
            self._cuttable.close()


class _Replies:
    """What smtplib reads from. smtplib limits the length of a reply's lines, but not their
    number."""

    def __init__(self, source: BufferedReader) -> None:
        self.left = 0
        """Bytes that the reply may still have."""
        self._source = source

    def readline(self, limit: int) -> bytes:
        line = self._source.readline(limit)
        self.left -= len(line)
        if self.left < 0:
            raise OSError(f"a reply of more than {LONGEST_REPLY_BYTES} bytes")
        return line

    def close(self) -> None:
        self._source.close()


class Connection:
    def __init__(
        self, settings: SmtpSettings, until: float, opened: Callable[["Connection"], None]
    ) -> None:
        """`opened` gets the connection before it waits for anything, so that it can be cut. Raises
        PublisherError with the reason, BrokerRefused if we are not let in."""
        self._settings = settings
        self._where = f"the mail server {settings.host}:{settings.port}"
        self.awaits_answer = False
        """The whole message was sent, and may have been taken."""
        self.broken = False
        self.used = 0
        self.idle_since = 0.0
        credentials = read_credentials(settings)
        self._secrets = _spellings(*credentials) if credentials else ()
        context = tls_context(settings.tls, "smtp.tls")
        self._client = Client(settings, context, _left(until))
        opened(self)
        try:
            with self._explained():
                self._enter(context, credentials)
        except BaseException:
            self._client.close()
            raise

    def _enter(self, context: ssl.SSLContext, credentials: tuple[str, str] | None) -> None:
        # The name for the certificate; smtplib takes it from the constructor or from here.
        self._client._host = self._settings.host  # type: ignore[attr-defined]
        code, text = self._client.connect(self._settings.host, self._settings.port)
        if code != 220:
            raise PublisherError(f"{self._where} refuses connections: {code} {self._text(text)}")
        self._client.ehlo_or_helo_if_needed()
        if self._settings.start_tls == "Required":
            if not self._client.has_extn("starttls"):
                raise PublisherError(
                    f"{self._where} offers no STARTTLS, and startTls is Required: nothing is sent "
                    "unencrypted"
                )
            code, text = self._client.starttls(context=context)
            if code != 220:
                raise PublisherError(f"{self._where}: STARTTLS: {code} {self._text(text)}")
            self._client.ehlo_or_helo_if_needed()
        if credentials is not None:
            self._log_in(*credentials)

    def _log_in(self, username: str, password: str) -> None:
        try:
            self._client.login(username, password)
        except smtplib.SMTPAuthenticationError as error:
            kind = BrokerRefused if error.smtp_code in LETS_NOBODY_IN else PublisherError
            raise kind(
                f"{self._where} refuses the login of {username}: {self._reason(error)}"
            ) from None
        except smtplib.SMTPNotSupportedError:
            raise BrokerRefused(f"{self._where} offers no login, but a password is set") from None
        except UnicodeError:  # its text contains the password
            raise BrokerRefused("the user name or the password is not ASCII") from None

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Errors of connecting as ours."""
        try:
            yield
        except ssl.SSLCertVerificationError as error:
            raise PublisherError(
                f"{self._where}: its certificate is not trusted: {error.verify_message}"
            ) from None
        except (OSError, smtplib.SMTPException) as error:
            raise PublisherError(f"{self._where} does not answer: {self._reason(error)}") from None

    @property
    def features(self) -> dict[str, str]:
        return self._client.esmtp_features

    @property
    def largest_message(self) -> int | None:
        """In bytes; None unless the server names a limit that is a number."""
        size = self.features.get("size", "")
        return int(size) or None if _SIZE.fullmatch(size) else None

    @property
    def tls_version(self) -> str | None:
        sock = self._client.sock
        return sock.version() if isinstance(sock, ssl.SSLSocket) else None

    def cut(self) -> None:
        self._client.cut()

    def is_alive(self, until: float) -> bool:
        """Asks the server."""
        try:
            self._limit(until)
            return self._client.noop()[0] == 250
        except (OSError, smtplib.SMTPException):
            return False

    def close(self, politely: bool = False) -> None:
        if politely:
            with suppress(OSError, smtplib.SMTPException):
                self._limit(time.monotonic() + 1)
                self._client.quit()
        self._client.close()

    def deliver(self, letter: Letter, until: float) -> Acked | Refused:
        """One attempt. Raises Lost; then `awaits_answer` shows how far it came."""
        limit = self.largest_message
        if limit is not None and limit < len(letter.content):
            return refused(
                "MESSAGE_TOO_LARGE",
                f"the message has {len(letter.content)} bytes, and the server takes {limit}",
            )
        self.awaits_answer = False
        try:
            self._limit(until)
            outcome = self._deliver(letter)
        except (OSError, smtplib.SMTPException) as error:
            self.broken = True
            raise Lost(self._reason(error)) from None
        self.awaits_answer = False
        self.used += 1
        return outcome

    def try_sender(self, sender: str, until: float) -> Reply:
        """The server's reply to this sender, without sending anything."""
        self._limit(until)
        (reply,) = self._ask([f"MAIL FROM:<{sender}>"])
        self._reset()
        return reply

    def _deliver(self, letter: Letter) -> Acked | Refused:
        size = f" SIZE={len(letter.content)}" if "size" in self.features else ""
        commands = [f"RCPT TO:<{address}>" for address in letter.recipients]
        mail, *answers = self._ask([f"MAIL FROM:<{letter.sender}>{size}", *commands])
        if not _is_good(mail):
            return self._refused(Stage.MAIL, mail, letter.sender_from_event)
        bad = [(a, r) for a, r in zip(letter.recipients, answers, strict=True) if not _is_good(r)]
        # Whoever got a copy now would get a second one when the others are tried again.
        later = [reply for _, reply in bad if reply[0] < 500]
        if later:
            return self._refused(Stage.RCPT, later[0])
        if len(bad) == len(answers):
            return self._refused(Stage.RCPT, bad[0][1])
        (go,) = self._ask(["DATA"])
        if go[0] != 354:
            return self._refused(Stage.DATA, go)
        self._client.send(letter.data)
        self.awaits_answer = True  # not before: the dot is at the end of what was written
        reply = self._reply()
        if not _is_good(reply):
            return self._refused(Stage.DATA, reply)
        without = "".join(f"; refused: {a} ({code} {text})" for a, (code, text) in bad)
        return Acked(f"{reply[0]} {reply[1]}{without}"[:LONGEST_RESULT_CHARS])

    def _refused(self, stage: Stage, reply: Reply, of_event: bool = True) -> Refused:
        if reply[0] in GOING_AWAY:
            self.broken = True
        else:
            self._reset()
        return refusal(stage, *reply, of_event)

    def _reset(self) -> None:
        """The next message starts from a clean state."""
        try:
            if self._client.rset()[0] != 250:
                self.broken = True
        except (OSError, smtplib.SMTPException):
            self.broken = True  # the refusal is known all the same

    def _ask(self, commands: Sequence[str]) -> list[Reply]:
        """An answer to each. Where the first is refused the others mean nothing."""
        if "pipelining" in self.features:
            replies: list[Reply] = []
            for start in range(0, len(commands), PIPELINED_COMMANDS):
                part = commands[start : start + PIPELINED_COMMANDS]
                self._client.send("".join(f"{command}\r\n" for command in part))
                replies += [self._reply() for _ in part]
            return replies
        replies = []
        for command in commands:
            self._client.send(f"{command}\r\n")
            replies.append(self._reply())
            if not _is_good(replies[0]) and command != "DATA":
                return replies + [replies[0]] * (len(commands) - len(replies))
        return replies

    def _reply(self) -> Reply:
        code, text = self._client.getreply()
        if code in GOING_AWAY:
            self.broken = True
        return code, self._text(text)

    def _text(self, raw: bytes | str) -> str:
        """The server's text, without our secrets: it may repeat what it was sent."""
        text = raw.decode("utf-8", "replace") if isinstance(raw, bytes) else raw
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return _CONTROL.sub(" ", text).strip()

    def _reason(self, error: Exception) -> str:
        if isinstance(error, smtplib.SMTPResponseException):
            return f"{error.smtp_code} {self._text(error.smtp_error)}"
        return self._text(str(error)) or type(error).__name__

    def _limit(self, until: float) -> None:
        """For each single wait. Limiting their sum is the publisher's business, by `cut`."""
        if self._client.sock is None:
            raise smtplib.SMTPServerDisconnected("the connection is closed")
        self._client.sock.settimeout(_left(until))


def read_credentials(settings: SmtpSettings) -> tuple[str, str] | None:
    if settings.username is None or settings.password is None:
        return None
    return settings.username.read("smtp.username"), settings.password.read("smtp.password")


def _is_good(reply: Reply) -> bool:
    return 200 <= reply[0] < 300


def _spellings(username: str, password: str) -> tuple[str, ...]:
    """The password as a login sends it: PLAIN has it with the name, and LOGIN alone."""
    if not password:
        return ()
    encoded = [b64encode(t.encode()).decode() for t in (f"\0{username}\0{password}", password)]
    return (*(text.rstrip("=") for text in encoded), password)


def _left(until: float) -> float:
    return max(LEAST_SECONDS, until - time.monotonic())

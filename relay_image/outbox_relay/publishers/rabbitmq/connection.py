"""
One connection with one channel in confirm mode: opens, publishes batches, collects confirms.

It belongs to one thread at a time. The socket never blocks, and every wait ends at a deadline: also
when the peer does not read, or sends a byte now and then. `errors` judges whose fault a failure is.
"""

import select
import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, TypeVar

from outbox_core.errors import BrokerRefused
from outbox_relay.publishers.rabbitmq import wire
from outbox_relay.publishers.rabbitmq.login import Address, Login
from outbox_relay.publishers.resolving import reach

T = TypeVar("T")

LARGEST_FRAME_BYTES = 131_072
SMALLEST_FRAME_BYTES = 4096
"""Every peer must accept frames of this size, by AMQP's rules."""
READ_BYTES = 262_144
LONGEST_POLL_SECONDS = 0.2
"""So that a deadline that has moved nearer, by `close`, is seen."""
SENT_AT_ONCE_BYTES = 65_536
CLOSE_SECONDS = 0.2
CATCH_UP_READS, CATCH_UP_BYTES = 16, 4096
"""An idle connection receives a few bytes now and then; a server that sends more is faulty."""
BLOCKED_PATIENCE_SECONDS = 1.0
"""An alarm is often over soon; what waits for it meanwhile is not sent twice."""


class Lost(Exception):
    """The connection has ended, or the server does not answer: what is in flight is in doubt."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


CURES: Final = {
    "EXTERNAL": "enable its plugin rabbitmq_auth_mechanism_ssl, and add EXTERNAL to its "
    "auth_mechanisms; or log in by username and password",
    "PLAIN": "add PLAIN to its auth_mechanisms; or log in by a certificate in tls, "
    "without username and password",
}
"""By the mechanism that it does not offer."""

FAILURES: Final = (Lost, OSError, ValueError, LookupError, struct.error)
"""All that a peer can do to us; the last three by frames that are cut short or make no sense."""


class TimeIsUp(Lost):
    def __init__(self, text: str) -> None:
        super().__init__("NO_CONFIRM", text)


class ClosedByServer(Lost):
    """It gave a reason, and by AMQP's rules took nothing after that."""

    def __init__(self, why: wire.Closing, of_channel: bool) -> None:
        name = why.text.partition(" ")[0] if why.text[:1].isupper() else f"AMQP_{why.code}"
        super().__init__(name, why.text)
        self.why = why
        self.of_channel = of_channel


class Flight:
    """The messages of one call: which are confirmed, and how."""

    WAITING, ACKED, NACKED = 0, 1, 2

    def __init__(self, first_tag: int) -> None:
        self.answers = bytearray()
        self.returned: dict[int, str] = {}
        """By index, why it could not be routed. Such a message is acked, too."""
        self.started = 0
        """How many were sent, the last of them perhaps in part."""
        self.left = 0
        self._ids: list[str] = []
        self._first_tag = first_tag
        self._lowest = 0

    def add(self, event_id: str) -> None:
        self._ids.append(event_id)
        self.answers.append(self.WAITING)
        self.left += 1

    def confirm(self, tag: int, multiple: bool, answer: int) -> None:
        index = tag - self._first_tag
        answers = self.answers
        if not 0 <= index < len(answers):
            raise wire.BadFrame(f"a confirm for a message that was never sent: {tag}")
        for at in range(self._lowest if multiple else index, index + 1):
            if not answers[at]:
                answers[at] = answer
                self.left -= 1
        if multiple:
            self._lowest = max(self._lowest, index + 1)

    def give_back(self, event_id: str | None, why: str) -> None:
        indexes = [index for index, known in enumerate(self._ids) if known == event_id]
        if not indexes:
            raise wire.BadFrame("a message came back that was never sent")
        for index in indexes:  # all of them, if it was sent twice: none may count as arrived
            self.returned[index] = why


class Connection:
    def __init__(
        self, address: Address, tls: ssl.SSLContext | None, heartbeat: float, until: float
    ) -> None:
        """Connects; `open` has to follow."""
        self.address = address
        self.until = until
        self.blocked: str | None = None
        """Why the server takes no messages now, in its own words."""
        self.largest_frame = LARGEST_FRAME_BYTES
        self.used_at = time.monotonic()
        self.broken = False
        """Not to be used again."""
        self._heartbeat = heartbeat
        self._received = bytearray()
        self._replies: list[wire.Frame] = []
        self._flight: Flight | None = None
        self._returning: str | None = None
        self._next_tag = 1
        self._handshaken = False
        self._is_closing = False
        self._sent_at = self._heard_at = time.monotonic()
        self._poll = select.poll()
        try:
            self._socket = reach(address.host, address.port, until)
        except OSError as error:
            raise Lost("NO_CONNECTION", f"cannot connect to {address}: {error}") from None
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket.setblocking(False)
            if tls is not None:
                self._socket = tls.wrap_socket(
                    self._socket, server_hostname=address.host, do_handshake_on_connect=False
                )
            self._poll.register(self._socket, select.POLLIN)
            if isinstance(self._socket, ssl.SSLSocket):
                self._attempt(self._socket.do_handshake)
        except BaseException:
            self._socket.close()
            raise

    def open(self, login: Login, vhost: str, exchange: str) -> None:
        """Log in, and make sure of the exchange: publishing to one that does not exist would lose
        all answers."""
        self._send(wire.PROTOCOL)
        offered = wire.mechanisms(self._reply(wire.START).payload)
        if login.mechanism not in offered:
            ways = ", ".join(offered) or "nothing"
            text = f"{self.address} offers {ways} to log in, not {login.mechanism}"
            raise BrokerRefused(f"RabbitMQ: {text}: {CURES[login.mechanism]}")
        self._send(wire.start_ok(*login))
        _, frame, heartbeat = wire.tuning(self._reply(wire.TUNE).payload)
        self.largest_frame = min(frame or LARGEST_FRAME_BYTES, LARGEST_FRAME_BYTES)
        if self.largest_frame < SMALLEST_FRAME_BYTES:
            raise wire.BadFrame(f"it takes frames of {frame} bytes: too few for any message")
        self._heartbeat = min(self._heartbeat, heartbeat or self._heartbeat)
        self._send(wire.tune_ok(1, self.largest_frame, max(1, int(self._heartbeat))))
        self._handshaken = True
        self._send(wire.open_vhost(vhost))
        self._reply(wire.OPEN_OK)
        self._send(wire.method_frame(wire.CHANNEL, wire.CHANNEL_OPEN, b"\x00"))
        self._reply(wire.CHANNEL_OPEN_OK)
        if exchange:  # the default one is always there, and cannot be asked about
            self._send(wire.ask_for_exchange(exchange))
            self._reply(wire.EXCHANGE_DECLARE_OK)
        self._send(wire.method_frame(wire.CHANNEL, wire.CONFIRM_SELECT, b"\x00"))
        self._reply(wire.CONFIRM_SELECT_OK)

    def publish(self, messages: Iterable[tuple[str, bytes]]) -> tuple[Flight, Lost | None]:
        """Send all, each with the event's id, then wait for all confirms; and why it ended before,
        if it did. They are asked for one after the other, while the server works on the first."""
        flight = self._flight = Flight(self._next_tag)
        lost: Lost | None = None
        try:
            self._send_all(messages, flight)
            while flight.left:
                self._wait(select.POLLIN, "no confirm in time")
        except BaseException as error:
            # Whatever it was: what comes later could be taken for an answer to the next call.
            self.broken = True
            if not isinstance(error, FAILURES):
                raise
            lost = as_lost(error, self.address)
        finally:
            self._flight = None
            self._next_tag += len(flight.answers)
        self.used_at = time.monotonic()
        return flight, lost

    def catch_up(self) -> None:
        """Take what the server has sent, without waiting; send a heartbeat if one is due. Raises
        Lost."""
        try:
            for _ in range(CATCH_UP_READS):
                if not self._poll.poll(0):
                    break
                self._receive(CATCH_UP_BYTES)
            else:
                raise wire.BadFrame("it sends without end, and unasked")
            self._beat()
        except FAILURES as error:
            raise as_lost(error, self.address) from None

    def begin_close(self, until: float) -> None:
        """`close` waits for the answer until then: without it the server logs a warning."""
        self.until = until
        self._is_closing = True
        try:
            self._send(wire.method_frame(0, wire.CLOSE, b"\x00\xc8" + b"\x00" * 5))
        except FAILURES:
            self.broken = True

    def close(self) -> None:
        if not self.broken and not self._is_closing:
            self.begin_close(time.monotonic() + CLOSE_SECONDS)
        with suppress(*FAILURES):
            if not self.broken:
                self.catch_up()  # others may have used up the time while the answer came
                self._reply(wire.CLOSE_OK)
        with suppress(OSError):
            self._socket.close()

    def _send_all(self, messages: Iterable[tuple[str, bytes]], flight: Flight) -> None:
        self._wait_while_blocked()  # it may have been blocked while it was idle
        gathered: list[bytes] = []
        size = 0
        for event_id, message in messages:
            flight.add(event_id)
            gathered.append(message)
            size += len(message)
            if size >= SENT_AT_ONCE_BYTES:
                flight.started += len(gathered)
                self._send(b"".join(gathered))
                gathered, size = [], 0
                if time.monotonic() >= self.until:
                    raise TimeIsUp(f"{self.address}: no time to send the rest")
                if self._poll.poll(0):
                    self._receive()
                self._wait_while_blocked()
        if gathered:
            flight.started += len(gathered)
            self._send(b"".join(gathered))

    def _send(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[self._attempt(partial(self._socket.send, rest)) :]
            self._sent_at = time.monotonic()

    def _attempt(self, action: Callable[[], T]) -> T:
        """Again and again, as soon as the socket is ready."""
        while True:
            try:
                return action()
            except (ssl.SSLWantReadError, BlockingIOError, ssl.SSLWantWriteError) as error:
                reads = isinstance(error, ssl.SSLWantReadError)
                # Reading also while we write: unread answers would stop the server.
                events = select.POLLIN if reads else select.POLLIN | select.POLLOUT
                self._wait(events, "the server does not read", sending=True)

    def _wait(self, events: int, why: str, sending: bool = False) -> None:
        """For the socket, for a short time; takes what has come. Raises Lost, also TimeIsUp."""
        now = time.monotonic()
        if now >= self.until:
            raise TimeIsUp(f"{self.address}: {why}")
        if now - self._heard_at > 2 * self._heartbeat:
            raise Lost("NO_HEARTBEAT", f"{self.address} has been silent for two heartbeats")
        if not sending:  # not in the middle of something else
            self._beat()
        patience = min(LONGEST_POLL_SECONDS, self.until - now)
        if events != select.POLLIN:
            self._poll.modify(self._socket, events)
        ready = self._poll.poll(max(1, int(patience * 1000)))
        if events != select.POLLIN:
            self._poll.modify(self._socket, select.POLLIN)
        if ready and ready[0][1] & ~select.POLLOUT and not self._is_handshaking():
            self._receive()
        if self.blocked is not None:
            self._wait_while_blocked()

    def _wait_while_blocked(self) -> None:
        if self.blocked is None:
            return
        patience = min(self.until, time.monotonic() + BLOCKED_PATIENCE_SECONDS)
        while self.blocked is not None:
            left = patience - time.monotonic()
            if left <= 0:
                raise Lost("BLOCKED", f"{self.address} takes no messages now: {self.blocked}")
            if self._poll.poll(max(1, int(left * 1000))):
                self._receive()

    def _is_handshaking(self) -> bool:
        return isinstance(self._socket, ssl.SSLSocket) and self._socket.version() is None

    def _beat(self) -> None:
        if self.broken:  # perhaps in the middle of a message
            return
        if self._handshaken and time.monotonic() - self._sent_at > self._heartbeat / 2:
            with suppress(BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                # Eight bytes: they fit, or the server has not read for long, and sees our bytes.
                self._socket.send(wire.HEARTBEAT_FRAME)
            self._sent_at = time.monotonic()

    def _receive(self, size: int = READ_BYTES) -> None:
        while True:
            try:
                data = self._socket.recv(size)
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return
            if not data:
                raise Lost("CONNECTION_LOST", f"{self.address} has closed the connection")
            self._heard_at = time.monotonic()
            self._received += data
            for frame in wire.frames(self._received, self.largest_frame):
                self._take(frame)
            if not (isinstance(self._socket, ssl.SSLSocket) and self._socket.pending()):
                return

    def _take(self, frame: wire.Frame) -> None:
        if frame.channel != frame.proper_channel:
            raise wire.BadFrame(f"a frame on channel {frame.channel}, where it does not belong")
        if frame.type == wire.HEADER:
            if self._flight is not None and self._returning is not None:
                self._flight.give_back(wire.message_id(frame.payload), self._returning)
            self._returning = None
            return
        if frame.type != wire.METHOD:
            return  # heartbeats, and the bodies of what came back
        match frame.method:
            case wire.ACK | wire.NACK as method:
                tag, flags = wire.TAG.unpack_from(frame.payload, wire.METHOD_ID.size)
                answer = Flight.ACKED if method == wire.ACK else Flight.NACKED
                if self._flight is not None:
                    self._flight.confirm(tag, bool(flags & wire.MULTIPLE), answer)
            case wire.RETURN:
                self._returning = wire.reason_of_return(frame.payload)
            case wire.BLOCKED:
                self.blocked = wire.reason_of_blocked(frame.payload)
            case wire.UNBLOCKED:
                self.blocked = None
            case wire.CLOSE | wire.CHANNEL_CLOSE as method:
                of_channel = method == wire.CHANNEL_CLOSE
                raise ClosedByServer(wire.closing(frame.payload), of_channel)
            case _ if self._replies:
                raise wire.BadFrame("it answers more than it was asked")
            case _:
                self._replies.append(frame)

    def _reply(self, method: wire.Method) -> wire.Frame:
        while not self._replies:
            self._wait(select.POLLIN, "no answer in time")
        frame = self._replies.pop(0)
        if frame.method != method:
            raise wire.BadFrame(f"expected the method {method}, but {frame.method} came")
        return frame


def close_all(connections: Sequence[Connection]) -> None:
    """In the time of one."""
    until = time.monotonic() + CLOSE_SECONDS
    for connection in connections:
        if not connection.broken:
            connection.begin_close(until)
    for connection in connections:
        connection.close()


def as_lost(error: Exception, address: Address) -> Lost:
    if isinstance(error, Lost):
        return error
    if isinstance(error, OSError):
        code = "TLS_FAILED" if isinstance(error, ssl.SSLError) else "CONNECTION_LOST"
        return Lost(code, f"{address}: {error}")
    why = str(error) if isinstance(error, wire.BadFrame) else f"a frame makes no sense: {error}"
    return Lost("NOT_AMQP", f"{address}: {why}")

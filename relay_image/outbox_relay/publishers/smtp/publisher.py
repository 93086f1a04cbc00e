"""
E-mail: acknowledged by the mail server's 250 after the message. One call is one attempt.

A call spreads its events over a few connections, each with a thread. The calling thread only keeps
the time: at the deadline it cuts the call's connections, so that neither a server that is silent
nor one that sends a byte a second can hold it.
"""

import logging
import threading
import time
from collections.abc import Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from datetime import timedelta

from outbox_core.contract.publishers.smtp import SmtpSettings
from outbox_core.contract.values import format_duration
from outbox_core.errors import BrokerRefused, OutboxError
from outbox_core.model.attempt import Error, ErrorClass, Outcome, Refused, Unsent
from outbox_core.model.event import Claim
from outbox_relay.publishers.destinations import Destinations
from outbox_relay.publishers.parking import Parked
from outbox_relay.publishers.protocol import CheckResult, Sample
from outbox_relay.publishers.smtp.check import check_smtp, enter
from outbox_relay.publishers.smtp.connection import (
    Connection,
    Lost,
    read_credentials,
)
from outbox_relay.publishers.smtp.messages import Letter, Letters
from outbox_relay.publishers.tls import tls_context

log = logging.getLogger(__name__)

IDLE_UNASKED_SECONDS = 1.0
"""A connection that was idle for longer is tested before it is used."""
GRACE_SECONDS = 1.0
"""After the deadline, for the threads whose connections were cut to report what they know."""
PUBLISHER_CLOSED = Unsent("the publisher is closed")
NOT_STARTED = Unsent("not started: too little time was left before the deadline")


class Call:
    """The events of one call of `publish`, and which are being sent. Shared by its threads."""

    def __init__(self, batch: Sequence[Claim], seconds: float) -> None:
        now = time.monotonic()
        self.until = now + seconds
        # What is in flight at the deadline is in doubt, and perhaps sent twice. So nothing starts
        # so late that a slow server could not answer in time.
        self.start_by = now + seconds / 2
        self.over = False
        self._batch = batch
        self._lock = threading.Lock()
        self._pending = list(range(len(batch)))[::-1]
        self._outcomes: list[Outcome | None] = [None] * len(batch)
        self._at_work: dict[int, Connection | None] = {}
        self._connections: set[Connection] = set()
        self._no_connection: Refused | None = None

    def take(self) -> tuple[int, Claim] | None:
        """The next event; None if there is none, or no time."""
        with self._lock:
            if self.over or not self._pending or time.monotonic() >= self.start_by:
                return None
            index = self._pending.pop()
            self._at_work[index] = None
            return index, self._batch[index]

    def give_back(self, index: int, why: Refused) -> None:
        """No connection for it: another thread may have one."""
        with self._lock:
            if not self.over:
                self._at_work.pop(index, None)
                self._pending.append(index)
            self._no_connection = why

    def opened(self, connection: Connection) -> None:
        with self._lock:
            self._connections.add(connection)
            if self.over:
                connection.cut()

    def released(self, connection: Connection) -> None:
        with self._lock:
            self._connections.discard(connection)

    def uses(self, index: int, connection: Connection) -> None:
        with self._lock:
            self._at_work[index] = connection

    def set(self, index: int, outcome: Outcome) -> None:
        with self._lock:
            self._outcomes[index] = outcome
            self._at_work.pop(index, None)

    def stop(self) -> None:
        with self._lock:
            self.over = True
            for connection in self._connections:
                connection.cut()

    def outcomes(self, in_doubt: Outcome, unanswered: Outcome) -> list[Outcome]:
        """Of all events, whatever their threads do from now on."""
        with self._lock:
            self.over = True
            waiting = {i for i, c in self._at_work.items() if c is not None and c.awaits_answer}
            found: list[Outcome] = []
            for index, outcome in enumerate(self._outcomes):
                if outcome is not None:
                    found.append(outcome)
                elif index in waiting:
                    found.append(in_doubt)
                elif index in self._at_work:
                    found.append(unanswered)
                else:
                    found.append(self._no_connection or NOT_STARTED)
            return found


class SmtpPublisher:
    def __init__(self, settings: SmtpSettings) -> None:
        self._settings = settings
        self._where = f"{settings.host}:{settings.port}"
        self._timeout = settings.delivery_timeout.total_seconds()
        self._letters = Letters(settings)
        self._server = Destinations(
            lambda _: self._where, self._deliver, self._timeout, time.monotonic
        )
        # Read here too, to fail early on a wrong setting.
        read_credentials(settings)
        tls_context(settings.tls, "smtp.tls")
        self._threads = ThreadPoolExecutor(settings.connections, thread_name_prefix="smtp")
        self._changed = threading.Condition()
        self._idle: list[Connection] = []
        self._busy = 0
        """Connections that a thread uses or is about to open: each may be idle soon."""
        self._calls: set[Call] = set()
        self._closed = False

    def publish(self, batch: Sequence[Claim]) -> Sequence[Outcome]:
        return self._server.publish(batch)

    def blame(self, batch: Sequence[Claim], outcomes: Sequence[Outcome]) -> Sequence[Outcome]:
        return self._server.blame(batch, outcomes)

    def parked(self) -> Sequence[Parked]:
        return self._server.parked()

    def route(self, claim: Claim) -> Hashable | None:
        return None

    def probe(self) -> None:
        enter(self._settings).close(politely=True)

    def check(self, samples: Sequence[Sample]) -> Sequence[CheckResult]:
        return check_smtp(self._settings)

    def close(self, timeout: timedelta) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()  # for those that wait for an idle connection: none will come
            if not self._changed.wait_for(lambda: not self._calls, timeout.total_seconds()):
                for call in self._calls:
                    call.stop()
                self._changed.wait_for(lambda: not self._calls, 2 * GRACE_SECONDS)
            idle = list(self._idle)
            self._idle.clear()
        for connection in idle:
            connection.close(politely=True)
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _deliver(self, batch: Sequence[Claim], patience: float | None) -> Sequence[Outcome]:
        if not batch:
            return []
        waited = self._timeout if patience is None else min(self._timeout, patience)
        call = Call(batch, waited)
        with self._changed:
            if self._closed:
                return [PUBLISHER_CLOSED] * len(batch)
            self._calls.add(call)
            helpers = min(self._settings.connections, len(batch))
            jobs = [self._threads.submit(self._drain, call) for _ in range(helpers)]
        try:
            if wait(jobs, call.until - time.monotonic()).not_done:
                call.stop()
                for job in jobs:
                    job.cancel()  # one that has not begun would wait for other calls
                wait(jobs, GRACE_SECONDS)
            limit = format_duration(timedelta(seconds=round(waited, 3)))
            text = f"{self._where}: no answer within {limit}"
            unanswered = Refused(Error.of(ErrorClass.OUTAGE, "NO_ANSWER", text))
            return call.outcomes(self._in_doubt(text), unanswered)
        finally:
            call.stop()
            with self._changed:
                self._calls.discard(call)
                self._changed.notify_all()

    def _drain(self, call: Call) -> None:
        """A thread's share: one event after the other, over one connection."""
        connection: Connection | None = None
        try:
            while (taken := call.take()) is not None:
                index, claim = taken
                letter = self._letter(claim)
                if isinstance(letter, Refused):
                    call.set(index, letter)
                    continue
                if connection is None:
                    try:
                        connection = self._connect(call)
                    except OutboxError as error:
                        call.give_back(index, _no_connection(error))
                        return
                connection = self._send(call, index, letter, connection)
        except Exception:
            log.exception("a thread of the publisher failed")  # its event counts as unanswered
        finally:
            if connection is not None:
                self._give_back(call, connection)

    def _send(
        self, call: Call, index: int, letter: Letter, connection: Connection
    ) -> Connection | None:
        """The connection, if it can be used again."""
        call.uses(index, connection)
        try:
            call.set(index, connection.deliver(letter, call.until))
        except Lost as lost:
            if connection.awaits_answer:
                call.set(index, self._in_doubt(f"{self._where}: {lost}"))
            else:
                text = f"{self._where}: the connection was lost: {lost}"
                call.set(index, Refused(Error.of(ErrorClass.OUTAGE, "CONNECTION_LOST", text)))
        if not connection.broken:
            return connection
        call.released(connection)
        connection.close()
        self._not_busy()
        return None

    def _in_doubt(self, text: str) -> Refused:
        """
        Where it is sent again, TRANSIENT and not OUTAGE: an outage costs no attempts, so a server
        that takes messages and loses its answers would send people the same letter forever.
        """
        kind = ErrorClass.EVENT if self._settings.in_doubt == "Hold" else ErrorClass.TRANSIENT
        why = f"sent, but it is not known whether it was taken: {text}"
        return Refused(Error.of(kind, "IN_DOUBT", why))

    def _letter(self, claim: Claim) -> Letter | Refused:
        try:
            return self._letters(claim)
        except Exception as error:
            log.exception("event %s: cannot be written as a message", claim.event_id)
            text = f"cannot be written as a message: {type(error).__name__}"
            return Refused(Error.of(ErrorClass.TRANSIENT, "NO_MESSAGE", text))

    def _connect(self, call: Call) -> Connection:
        try:
            return self._idle_or_new(call)
        except OutboxError:
            # A server may allow fewer connections than we would open: then wait for one of ours.
            if (connection := self._next_idle(call)) is None:
                raise
            return connection

    def _idle_or_new(self, call: Call) -> Connection:
        with self._changed:
            self._busy += 1
        try:
            while (connection := self._take_idle()) is not None:
                call.opened(connection)
                fresh = time.monotonic() - connection.idle_since < IDLE_UNASKED_SECONDS
                if fresh or connection.is_alive(call.until):
                    return connection
                call.released(connection)
                connection.close()
            return Connection(self._settings, call.until, call.opened)
        except BaseException:
            self._not_busy()
            raise

    def _take_idle(self) -> Connection | None:
        with self._changed:
            return self._idle.pop() if self._idle else None

    def _next_idle(self, call: Call) -> Connection | None:
        """The first that another thread gives back; None if there is none to wait for, or no
        time."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._idle or not self._busy or self._closed,
                max(0.0, call.start_by - time.monotonic()),
            )
            if not self._idle:
                return None
            connection = self._idle.pop()
            self._busy += 1
        call.opened(connection)
        return connection

    def _not_busy(self) -> None:
        with self._changed:
            self._busy -= 1
            self._changed.notify_all()

    def _give_back(self, call: Call, connection: Connection) -> None:
        call.released(connection)
        connection.idle_since = time.monotonic()
        with self._changed:
            self._busy -= 1
            kept = not self._closed and not connection.broken and not call.over
            if kept:
                self._idle.append(connection)
            self._changed.notify_all()
        if not kept:
            connection.close(politely=not call.over)


def _no_connection(error: OutboxError) -> Refused:
    code = "LOGIN_REFUSED" if isinstance(error, BrokerRefused) else "NO_CONNECTION"
    return Refused(Error.of(ErrorClass.OUTAGE, code, str(error)))

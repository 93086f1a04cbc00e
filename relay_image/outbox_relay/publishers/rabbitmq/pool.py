"""
The connections: one for each call at a time, kept for the next, with heartbeats while they wait.

Remembers which hosts answer, and whether the server has blocked us: it informs only a connection
that has published, so that one is kept until the block ends.
"""

import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from outbox_core.contract.publishers.rabbitmq import RabbitMQSettings
from outbox_core.errors import BrokerRefused, PublisherError
from outbox_relay.publishers.rabbitmq.connection import (
    FAILURES,
    ClosedByServer,
    Connection,
    Lost,
    as_lost,
    close_all,
)
from outbox_relay.publishers.rabbitmq.errors import LETS_NOBODY_IN, NOT_FOUND
from outbox_relay.publishers.rabbitmq.login import addresses, login
from outbox_relay.publishers.tls import tls_context

IDLE_SECONDS = 60.0
"""A connection that was idle for longer is closed: the rush that needed it is over."""


class Pool:
    def __init__(self, settings: RabbitMQSettings) -> None:
        self._settings = settings
        self._addresses = addresses(settings)
        self._heartbeat = settings.heartbeat.total_seconds()
        self._changed = threading.Condition()
        self._idle: list[Connection] = []
        self._busy: set[Connection] = set()
        self._blocked: list[Connection] = []
        self._keeper: threading.Thread | None = None
        self.closed = False

    def take(self, until: float) -> Connection | None:
        """None if it was closed meanwhile. Raises PublisherError."""
        with self._changed:
            while self._idle and not self.closed:
                connection = self._idle.pop()  # the last one used
                if self._is_well(connection):
                    connection.until = until
                    self._busy.add(connection)
                    return connection
        connection = self.connect(until)
        with self._changed:
            if not self.closed:  # `close` waits for what is busy, and for nothing else
                self._busy.add(connection)
                if self._keeper is None:
                    self._keeper = threading.Thread(
                        target=self._keep, name="rabbitmq-heartbeats", daemon=True
                    )
                    self._keeper.start()
                return connection
        connection.close()
        return None

    def give_back(self, connection: Connection) -> None:
        with self._changed:
            self._busy.discard(connection)
            is_over = self.closed or (connection.broken and connection.blocked is None)
            if not is_over:
                (self._idle if connection.blocked is None else self._blocked).append(connection)
            if self.closed:
                self._changed.notify_all()
        if is_over:
            connection.close()

    def why_blocked(self) -> str | None:
        with self._changed:
            for connection in list(self._blocked):
                if self._is_well(connection) and connection.blocked is not None:
                    return f"{connection.address} takes no messages now: {connection.blocked}"
                self._blocked.remove(connection)
                connection.broken = True
                connection.close()
        return None

    def connect(self, until: float) -> Connection:
        """To the first host that answers. Raises PublisherError; BrokerRefused if it answers, and
        does not let us in."""
        settings = self._settings
        who = login(settings)
        tls = None if settings.tls is None else tls_context(settings.tls, "rabbitmq.tls")
        reasons: list[str] = []
        for tried, address in enumerate(list(self._addresses)):
            now = time.monotonic()
            # A share for each, so that one that does not answer leaves time for the others.
            share = now + (until - now) / (len(self._addresses) - tried)
            try:
                with _refusals_recognised():
                    connection = Connection(address, tls, self._heartbeat, share)
                    try:
                        connection.open(who, settings.vhost, settings.exchange)
                    except BaseException:
                        connection.broken = True
                        connection.close()
                        raise
            except FAILURES as error:
                reasons.append(str(as_lost(error, address)))
                continue
            connection.until = until
            with self._changed:  # first, next time
                self._addresses.sort(key=lambda known: known != address)
            return connection
        raise PublisherError(f"RabbitMQ does not answer: {'; '.join(reasons)}")

    def close(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        with self._changed:
            self.closed = True
            for connection in self._busy:
                connection.until = min(connection.until, deadline)
            self._changed.notify_all()
            # A little longer: a call that stops at the deadline still has to report it.
            self._changed.wait_for(lambda: not self._busy, timeout + 1)
            left = [*self._idle, *self._blocked]
            self._idle.clear()
            self._blocked.clear()
        close_all(left)
        if self._keeper is not None:
            self._keeper.join(1)

    def _keep(self) -> None:
        while True:
            with self._changed:
                if self._changed.wait_for(lambda: self.closed, self._heartbeat / 4):
                    return
                self._idle = [known for known in self._idle if self._is_well(known)]
                for connection in self._blocked:
                    self._is_well(connection)
                now = time.monotonic()
                unused = [known for known in self._idle if now - known.used_at > IDLE_SECONDS]
                self._idle = [known for known in self._idle if known not in unused]
            close_all(unused)

    @staticmethod
    def _is_well(connection: Connection) -> bool:
        if connection.broken and connection.blocked is None:
            return False
        try:
            connection.catch_up()
        except Lost:
            connection.broken = True
            connection.blocked = None
            connection.close()
            return False
        return True


@contextmanager
def _refusals_recognised() -> Iterator[None]:
    """While we log in. A refusal ends the search: every other host of the cluster would refuse us
    too."""
    try:
        yield
    except ClosedByServer as error:
        if error.why.code in LETS_NOBODY_IN:
            raise BrokerRefused(f"RabbitMQ does not let us in: {error.why.text}") from None
        if error.of_channel and error.why.code == NOT_FOUND:
            raise PublisherError(f"{error.why.text}: the relay creates no exchange") from None
        raise
    except ssl.SSLCertVerificationError as error:
        text = f"RabbitMQ's certificate is not trusted: {error.verify_message}"
        raise BrokerRefused(text) from None

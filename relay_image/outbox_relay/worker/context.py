"""What the threads of a relay process share."""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from outbox_core.contract.settings import RelaySettings
from outbox_core.errors import SettingsError, StoreUnavailable
from outbox_core.model.retry import Retry
from outbox_core.observe.health import Health
from outbox_core.observe.metrics import RelayMetrics
from outbox_core.store import relays
from outbox_core.store.connection import Connection, connect, relay_application
from outbox_core.store.migrate import require_current
from outbox_relay.publishers.protocol import Publisher
from outbox_relay.worker.breaker import Breaker
from outbox_relay.worker.polling import Crew

log = logging.getLogger("outbox.relay")


class InFlight:
    """
    The claims of this process by their tokens: those that are being published, so that the keeper
    can renew them, and those that may have been made although the answer was lost, so that it can
    give them back.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._claims: dict[int, tuple[Sequence[int], float]] = {}
        self._asked: set[int] = set()
        self._in_doubt: dict[int, float] = {}

    def ask(self, token: int) -> None:
        """Called before a claim is sent."""
        with self._lock:
            self._asked.add(token)

    def add(self, token: int, seqs: Sequence[int], renewed_at: float) -> None:
        with self._lock:
            self._asked.discard(token)
            self._claims[token] = (seqs, renewed_at)

    def remove(self, token: int) -> None:
        with self._lock:
            self._asked.discard(token)
            self._claims.pop(token, None)
            self._in_doubt.pop(token, None)

    def doubt(self, token: int, until: float) -> None:
        """The claim was sent, and the connection was lost; until then it may still be made."""
        with self._lock:
            self._asked.discard(token)
            self._in_doubt[token] = until

    def in_doubt(self, now: float) -> list[int]:
        with self._lock:
            self._in_doubt = {t: until for t, until in self._in_doubt.items() if until > now}
            return list(self._in_doubt)

    def tokens(self) -> frozenset[int]:
        """All tokens under which this process may have claims."""
        with self._lock:
            return frozenset((*self._claims, *self._asked, *self._in_doubt))

    def older_than(self, when: float) -> dict[int, Sequence[int]]:
        with self._lock:
            return {token: seqs for token, (seqs, at) in self._claims.items() if at <= when}

    def renewed(self, token: int, at: float) -> None:
        with self._lock:
            if token in self._claims:
                self._claims[token] = (self._claims[token][0], at)


@dataclass
class Context:
    settings: RelaySettings
    relay: int
    publisher: Publisher
    policy: Retry
    crew: Crew
    breaker: Breaker
    health: Health
    metrics: RelayMetrics
    in_flight: InFlight = field(default_factory=InFlight)
    stopping: threading.Event = field(default_factory=threading.Event)
    version: int = 0
    """Of our registration."""
    floor: int = 0
    """Below this seq, an unordered relay has nothing in line: counting need not scan there."""
    first_claimed_at: float = 0.0
    """When worker 0 claimed last: while it does, the others need not claim the few events that
    come."""
    clock: Callable[[], float] = time.monotonic
    _registering: threading.Lock = field(default_factory=threading.Lock)

    @property
    def ordered(self) -> bool:
        return self.settings.ordering == "Key"

    @property
    def blocks(self) -> bool:
        return self.ordered and self.settings.on_dead == "Block"

    def open_connection(self, purpose: str) -> Connection:
        store = self.settings.store
        try:
            conn = connect(
                store.dsn.read("store.dsn"),
                relay_application(self.settings.name, purpose),
                store.connect_timeout.total_seconds(),
                self.settings.statement_timeout.total_seconds(),
            )
        except SettingsError as error:
            if not self.relay:
                raise
            # It was valid when we started: the secret is being changed, and will be valid again.
            raise StoreUnavailable(str(error)) from error
        try:
            if self.relay and not relays.is_registered(conn, self.relay, self.settings.name):
                self.register_again(conn)
        except BaseException:
            conn.close()
            raise
        return conn

    def register(self, conn: Connection) -> None:
        require_current(conn)
        self.relay, self.version = relays.register(conn, self.settings)

    def register_again(self, conn: Connection) -> None:
        """The database is not the one where we registered, or an older state of it."""
        with self._registering:
            if relays.is_registered(conn, self.relay, self.settings.name):
                return  # another thread was faster
            log.warning(
                "this database does not know relay %s by its id: it was restored, or it is another "
                "database; registering again",
                self.settings.name,
                extra={"event": "registered_again"},
            )
            self.register(conn)

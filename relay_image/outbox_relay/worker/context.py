"""What the threads of a relay process share."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from outbox_relay.contract.settings import RelaySettings
from outbox_relay.errors import SettingsError, StoreUnavailable
from outbox_relay.model.retry import Retry
from outbox_relay.observe.health import Health
from outbox_relay.observe.metrics import Metrics
from outbox_relay.publishers.protocol import Publisher
from outbox_relay.store.connection import Connection, connect, relay_application
from outbox_relay.worker.breaker import Breaker
from outbox_relay.worker.polling import Crew


class InFlight:
    """The claims that are being published, so that the keeper can renew them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._claims: dict[int, tuple[Sequence[int], float]] = {}

    def add(self, token: int, seqs: Sequence[int], renewed_at: float) -> None:
        with self._lock:
            self._claims[token] = (seqs, renewed_at)

    def remove(self, token: int) -> None:
        with self._lock:
            self._claims.pop(token, None)

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
    metrics: Metrics
    in_flight: InFlight = field(default_factory=InFlight)
    stopping: threading.Event = field(default_factory=threading.Event)
    floor: int = 0
    """Below this seq nothing of an unordered relay is in line: counting need not look there."""
    clock: Callable[[], float] = time.monotonic

    @property
    def ordered(self) -> bool:
        return self.settings.ordering == "Key"

    @property
    def blocks(self) -> bool:
        return self.ordered and self.settings.on_dead == "Block"

    def open_connection(self, purpose: str) -> Connection:
        store = self.settings.store
        try:
            return connect(
                store.dsn.read("store.dsn"),
                relay_application(self.settings.name, purpose),
                store.connect_timeout.total_seconds(),
                self.settings.statement_timeout.total_seconds(),
            )
        except SettingsError as error:
            if not self.relay:
                raise
            # It was right when we started: a secret is being changed, and will be right again.
            raise StoreUnavailable(str(error)) from error

"""
The store with retries: while it is unavailable, the connection is opened again and the call
repeated.

Used by pipelines and their tasks. Errors that waiting does not cure (a wrong password, a missing
right, a rule) are raised at once. A call must be safe to repeat, because its first answer may be
lost.
"""

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from outbox_core.contract.settings import StoreSettings
from outbox_core.errors import ACCESS_REFUSED, DatabaseMissing, StoreUnavailable
from outbox_core.store.connection import Connection, connect

log = logging.getLogger("outbox.replay")

T = TypeVar("T")

PATIENCE_SECONDS = 300.0
"""Long enough for a failover, or a restart with its recovery."""
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.2, 5.0
"""Between two tries; doubled each time."""
NOT_WORTH_WAITING = (*ACCESS_REFUSED, DatabaseMissing)
"""The server answers, and its answer will be the same in a minute."""


class RetryingStore:
    """One connection to the store; not for several threads."""

    def __init__(
        self,
        store: StoreSettings,
        application: str,
        *,
        statement_timeout: float = 0.0,
        patience: float = PATIENCE_SECONDS,
        on_trouble: Callable[[StoreUnavailable], None] = lambda error: None,
        on_answer: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        self._store, self._application = store, application
        self._statement_timeout = statement_timeout
        self._patience = patience
        self._on_trouble, self._on_answer = on_trouble, on_answer
        self._clock, self._wait = clock, wait
        self._conn: Connection | None = None

    def ask(self, question: Callable[[Connection], T]) -> T:
        """The store's answer; raises StoreUnavailable if there was none for `patience` seconds."""
        since: float | None = None
        pause = FIRST_PAUSE_SECONDS
        while True:
            try:
                answer = question(self._connection())
            except StoreUnavailable as error:
                self.close()
                now = self._clock()
                since = now if since is None else since
                if isinstance(error, NOT_WORTH_WAITING) or now - since >= self._patience:
                    raise
                log.warning("trying again: %s", error, extra={"event": "unavailable"})
                self._on_trouble(error)
                self._wait(pause)
                pause = min(LONGEST_PAUSE_SECONDS, 2 * pause)
            else:
                if since is not None:
                    log.info("the store answers again", extra={"event": "available"})
                self._on_answer()
                return answer

    def close(self) -> None:
        if self._conn is not None:
            self._conn.close()
            self._conn = None

    def __enter__(self) -> "RetryingStore":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _connection(self) -> Connection:
        if self._conn is None:
            self._conn = connect(
                self._store.dsn.read("store.dsn"),
                self._application,
                self._store.connect_timeout.total_seconds(),
                self._statement_timeout,
            )
        return self._conn

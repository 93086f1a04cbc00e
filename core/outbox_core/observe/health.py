"""Health of a process: is it able to work? Written by its threads, read by the HTTP server."""

import logging
import threading
import time
from collections.abc import Callable, Mapping

from outbox_core.contract.reasons import ProcessReason, reason_of
from outbox_core.errors import OutboxError

log = logging.getLogger("outbox.health")


class Health:
    """The troubles that keep the process from working, by name. It is ready when there are none."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._troubles: dict[str, str] = {"start": "not registered with the store yet"}
        self._reasons = {"start": ProcessReason.STARTING}
        self._since = {"start": clock()}

    def trouble(
        self, what: str, why: str | OutboxError, reason: ProcessReason | None = None
    ) -> None:
        """Report a trouble. `reason` is needed if `why` is not an error, which has its own."""
        if isinstance(why, OutboxError):
            reason = reason or reason_of(why)
        with self._lock:
            known = what in self._troubles
            self._troubles[what] = str(why)
            self._since.setdefault(what, self._clock())
            self._reasons.pop(what, None)
            if reason is not None:
                self._reasons[what] = reason
        if not known:
            log.warning("%s unavailable: %s", what, why, extra={"event": "unavailable"})

    def draining(self, why: str) -> None:
        """The process takes no more work, but nothing is wrong: it was asked to stop."""
        with self._lock:
            self._troubles["draining"] = why
            self._reasons["draining"] = ProcessReason.DRAINING
        log.info("draining: %s", why, extra={"event": "draining"})

    def clear(self, what: str) -> None:
        """This trouble is over."""
        with self._lock:
            known = self._troubles.pop(what, None)
            self._reasons.pop(what, None)
            self._since.pop(what, None)
        if known is not None and what != "start":
            log.info("%s available again", what, extra={"event": "available"})

    @property
    def troubles(self) -> Mapping[str, str]:
        with self._lock:
            return dict(self._troubles)

    def lasting(self, reason: ProcessReason, seconds: float) -> Mapping[str, str]:
        """The troubles for this reason that have lasted for at least this long."""
        since = self._clock() - seconds
        with self._lock:
            return {
                what: why
                for what, why in self._troubles.items()
                if self._reasons.get(what) is reason and self._since.get(what, since) <= since
            }

    @property
    def reasons(self) -> Mapping[str, ProcessReason]:
        """The reasons of the troubles, where known."""
        return self.snapshot()[1]

    def snapshot(self) -> tuple[dict[str, str], dict[str, ProcessReason]]:
        """The troubles and their reasons at one moment: read one after the other, a trouble that
        ends in between would seem to have no reason."""
        with self._lock:
            return dict(self._troubles), dict(self._reasons)

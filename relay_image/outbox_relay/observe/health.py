"""Is the process fit to work? Written by the worker's threads, read by the HTTP server."""

import logging
import threading
from collections.abc import Mapping

log = logging.getLogger("outbox.health")


class Health:
    """What stands in the way, by name. Ready when nothing does."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._troubles: dict[str, str] = {"start": "not registered with the store yet"}

    def trouble(self, what: str, why: str) -> None:
        with self._lock:
            known = what in self._troubles
            self._troubles[what] = why
        if not known:
            log.warning("%s unavailable: %s", what, why, extra={"happening": "unavailable"})

    def draining(self, why: str) -> None:
        """Not fit for more work, and nothing is wrong: we were told to stop."""
        with self._lock:
            self._troubles["draining"] = why
        log.info("draining: %s", why, extra={"happening": "draining"})

    def well(self, what: str) -> None:
        with self._lock:
            known = self._troubles.pop(what, None)
        if known is not None and what != "start":
            log.info("%s available again", what, extra={"happening": "available"})

    @property
    def troubles(self) -> Mapping[str, str]:
        with self._lock:
            return dict(self._troubles)

"""
The circuit breaker: an outage of the broker is not a failure of the events.

While it is open nothing is claimed, so no event's budget is spent and nothing goes to DEAD, however
long the outage lasts. The broker is probed at a growing pause; when it answers, one small batch
goes first, and only its success lets everything through.
"""

import threading
from collections.abc import Callable, Sequence
from enum import StrEnum

from outbox_relay.contract.reasons import Reason
from outbox_relay.model.attempt import Acked, ErrorClass, Outcome, Refused

TRIAL = 20
"""Events in the batch that goes first."""


class BreakerState(StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    TRIAL = "trial"


class Breaker:
    """Shared by the workers of a process."""

    def __init__(
        self, clock: Callable[[], float], shortest: float = 0.5, longest: float = 5.0
    ) -> None:
        self._clock = clock
        self._shortest = shortest
        self._longest = longest
        self._lock = threading.Lock()
        self._state = BreakerState.CLOSED
        self._pause = shortest
        self._probe_at = 0.0
        self._trying = False
        self.reason = ""
        self.cause = Reason.BROKER_UNREACHABLE

    @property
    def state(self) -> BreakerState:
        return self._state

    def allowance(self, limit: int) -> int:
        """How many events may be claimed now; 0: none."""
        with self._lock:
            if self._state is BreakerState.CLOSED:
                return limit
            if self._state is BreakerState.TRIAL and not self._trying:
                self._trying = True
                return min(limit, TRIAL)
            return 0

    def next_probe(self) -> float | None:
        """Seconds until the broker should be probed; None while it need not be."""
        with self._lock:
            if self._state is not BreakerState.OPEN:
                return None
            return max(0.0, self._probe_at - self._clock())

    def probed(self, failure: str | None, cause: Reason = Reason.BROKER_UNREACHABLE) -> None:
        with self._lock:
            if self._state is not BreakerState.OPEN:
                return
            if failure is None:
                self._state, self._trying = BreakerState.TRIAL, False
            else:
                self.reason, self.cause = failure, cause
                self._pause = min(self._longest, self._pause * 2)
                self._probe_at = self._clock() + self._pause

    def saw(self, outcomes: Sequence[Outcome]) -> bool:
        """What became of a batch; True if the breaker changed its state."""
        with self._lock:
            was = self._state
            self._trying = False
            if any(isinstance(o, Acked) for o in outcomes):
                self._close()
            else:
                errors = [o.error for o in outcomes if isinstance(o, Refused)]
                if errors and all(e.kind is ErrorClass.OUTAGE for e in errors):
                    self._state, self.reason = (
                        BreakerState.OPEN,
                        f"{errors[0].code}: {errors[0].text}",
                    )
                    self.cause = Reason.BROKER_UNREACHABLE  # the next probe may know better
                    if was is not BreakerState.CLOSED:  # it answers probes and takes nothing
                        self._pause = min(self._longest, self._pause * 2)
                    self._probe_at = self._clock() + self._pause
                elif errors and was is BreakerState.TRIAL:
                    self._close()  # it answers, if only with a refusal
            return self._state is not was

    def _close(self) -> None:
        self._state, self._pause, self.reason = BreakerState.CLOSED, self._shortest, ""

    def found_nothing(self) -> None:
        """The trial did not happen: nothing was claimed. The next claim may be the trial."""
        with self._lock:
            self._trying = False

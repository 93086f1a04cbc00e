"""
The circuit breaker: an outage of the broker is not a failure of the events.

While it is open nothing is claimed, so no event uses up its budget and none becomes DEAD, however
long the outage lasts. Only a probe opens it: a batch of which nothing arrived may have been for one
broken topic. The broker is then probed with growing pauses; when it answers, one small batch goes
first. If that is acknowledged, or refused, or the broker still answers, work continues as usual.
"""

import threading
from collections.abc import Callable, Sequence
from enum import StrEnum

from outbox_core.contract.reasons import ProcessReason
from outbox_core.model.attempt import Acked, ErrorClass, Outcome, Refused

TRIAL_BATCH_EVENTS = 20
"""Size of the batch that goes first."""
LONGEST_PROBE_SECONDS = 30.0
"""How long a worker waits for another worker's probe."""


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
        self._answered = threading.Condition(self._lock)
        self._state = BreakerState.CLOSED
        self._pause = shortest
        self._probe_at = 0.0
        self._trying = False
        self._in_doubt = False
        self.reason = ""
        self.cause = ProcessReason.BROKER_UNREACHABLE

    @property
    def state(self) -> BreakerState:
        return self._state

    def allowance(self, limit: int) -> int:
        """How many events may be claimed now; 0 also while a probe is pending."""
        with self._lock:
            if self._in_doubt:
                return 0
            if self._state is BreakerState.CLOSED:
                return limit
            if self._state is BreakerState.TRIAL and not self._trying:
                self._trying = True
                return min(limit, TRIAL_BATCH_EVENTS)
            return 0

    def doubts(self, outcomes: Sequence[Outcome]) -> bool:
        """Whether nothing arrived and the broker may be the cause: only a probe can show it."""
        return self._state is not BreakerState.OPEN and _is_outage(outcomes)

    def is_mine_to_probe(self) -> bool:
        """Whether the caller must probe the broker now and report to `probed`. One worker probes at
        a time, and the others wait here for its result."""
        with self._lock:
            if not self._in_doubt:
                self._in_doubt = True
                return True
            self._answered.wait_for(lambda: not self._in_doubt, LONGEST_PROBE_SECONDS)
            return False

    def next_probe(self) -> float | None:
        """Seconds until the broker should be probed; None while it need not be."""
        with self._lock:
            if self._state is not BreakerState.OPEN:
                return None
            return max(0.0, self._probe_at - self._clock())

    def probed(
        self, failure: str | None, cause: ProcessReason = ProcessReason.BROKER_UNREACHABLE
    ) -> None:
        """The result of a probe: either after `doubts`, or while the breaker is open."""
        with self._lock:
            in_doubt, self._in_doubt = self._in_doubt, False
            self._answered.notify_all()
            if self._state is not BreakerState.OPEN and not in_doubt:
                return
            if failure is not None:
                self.reason, self.cause = failure, cause
                if self._state is not BreakerState.CLOSED:
                    self._pause = min(self._longest, self._pause * 2)
                self._state = BreakerState.OPEN
                self._probe_at = self._clock() + self._pause
            elif self._state is BreakerState.OPEN:
                self._state, self._trying = BreakerState.TRIAL, False
            else:
                self._close()

    def saw(self, outcomes: Sequence[Outcome]) -> bool:
        """Record the outcomes of a batch; True if the breaker changed its state."""
        with self._lock:
            was = self._state
            self._trying = False
            if any(isinstance(o, Acked) for o in outcomes):
                self._close()
            elif (
                was is BreakerState.TRIAL
                and any(isinstance(o, Refused) for o in outcomes)
                and not _is_outage(outcomes)
            ):
                self._close()  # it answers, even if with a refusal
            return self._state is not was

    def _close(self) -> None:
        self._state, self._pause, self.reason = BreakerState.CLOSED, self._shortest, ""

    def found_nothing(self) -> None:
        """The trial did not happen: nothing was claimed. The next claim may be the trial."""
        with self._lock:
            self._trying = False


def _is_outage(outcomes: Sequence[Outcome]) -> bool:
    """Nothing arrived, and every failure looks like an outage. Failures of a single destination
    show nothing about the broker."""
    if any(isinstance(o, Acked) for o in outcomes):
        return False
    kinds = {o.error.kind for o in outcomes if isinstance(o, Refused)} - {ErrorClass.DESTINATION}
    return kinds == {ErrorClass.OUTAGE}

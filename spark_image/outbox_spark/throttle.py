"""
The throttle: how many events may be replayed per second now, so that live ones do not wait.

Called by a pipeline, about once a second. Pure: the caller reads how long events wait, and the
database enforces the resulting pace, for all tasks together. Replayed events count among those that
wait: a relay takes them before its line of new events, so live events would wait behind them.
"""

from dataclasses import dataclass, replace

TOLERATED_WAIT_SECONDS = 1.0
"""Live events may always wait this long: shorter waits are the relay's normal rhythm."""
LEAST_SHARE = 0.01
"""This share of the rate is always allowed: a replay that stood still would not show why."""
GROWTH_FACTOR = 1.25
"""A second in which live events do not wait allows a quarter more: from half to full in four."""


@dataclass(frozen=True)
class Throttle:
    rate: float
    """The requested events per second."""
    usual: float
    """Seconds that the oldest event waited when the attempt began, or less if it was less since."""
    yields: bool = True

    @property
    def limit(self) -> float:
        """Seconds that live events may wait during the replay."""
        return max(2 * self.usual, TOLERATED_WAIT_SECONDS)

    def seen(self, waited: float) -> "Throttle":
        """A backlog from before the replay counts as usual until it is gone; one that grows during
        the replay never does."""
        return replace(self, usual=min(self.usual, waited))

    def next(self, pace: float, waited: float) -> float:
        """The pace for the next second, from the last one and how long live events waited."""
        if not self.yields:
            return self.rate
        if waited > self.limit:
            return max(pace / 2, self.rate * LEAST_SHARE, 1.0)
        return min(pace * GROWTH_FACTOR, self.rate)

"""
The throttle: how many events may come back per second now, so that live ones do not wait for them.

Called by a pipeline, about once a second. Pure: how long events wait is read by others, and the
pace that is judged right here is kept by the database, for all tasks together. What the replay gave
back itself counts among those that wait: a relay takes it before its line of new events, so a queue
of it is what live events would wait behind.
"""

from dataclasses import dataclass, replace

TOLERATED_WAIT_SECONDS = 1.0
"""Live events may wait so long in any case: below that it is the relay's own rhythm."""
LEAST_SHARE = 0.01
"""Of the rate, that is always left: a replay that stood still would not show why."""
GROWTH_FACTOR = 1.25
"""A second without trouble allows a quarter more: back from half to all in three."""


@dataclass(frozen=True)
class Throttle:
    rate: float
    """What was asked for."""
    usual: float
    """Seconds that the oldest event waited when the attempt began, or less since."""
    yields: bool = True

    @property
    def limit(self) -> float:
        """Seconds that live events may wait beside the replay."""
        return max(2 * self.usual, TOLERATED_WAIT_SECONDS)

    def seen(self, waited: float) -> "Throttle":
        """A backlog that was there at the beginning counts as usual until it is gone; what grows
        beside the replay never does."""
        return replace(self, usual=min(self.usual, waited))

    def next(self, pace: float, waited: float) -> float:
        """The pace of the next second, from that of the last and how long live events waited."""
        if not self.yields:
            return self.rate
        if waited > self.limit:
            return max(pace / 2, self.rate * LEAST_SHARE, 1.0)
        return min(pace * GROWTH_FACTOR, self.rate)

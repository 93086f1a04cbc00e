"""
Parking: which destinations take nothing now, and when each is tried again.

A destination is whatever can fail alone: a topic, an endpoint, a queue. Events for one that has
just failed would only wait for it again, and everything in the same batch would wait with them. So
the destination is parked for a pause, which grows with every failure. After the pause a few events
are tried, and an answer to them ends the parking. A trial that made its call longer makes the pause
longer too: all trials of a process together take a small part of one worker's time, however many
destinations are silent.

No IO. Whose fault a failure was is decided in `destinations`.
"""

import math
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from outbox_core.model.attempt import LONGEST_RETRY_AFTER_SECONDS

FORGET_AFTER_SECONDS = 600.0
"""After its pause. A destination that was not tried for this long has no events waiting for it."""

RETURNS_PER_SECOND = 2000
"""Events that were turned away are claimed again only to be turned away again. At this rate the
database hardly notices, however many wait."""

LONGEST_ABSENCE_SECONDS = 300.0
"""Events that were turned away do not notice when the destination recovers."""


TRIALS_SHARE = 0.05
"""Of one worker's time: how much longer all trials of a process together may make its calls."""

LONGEST_FAIR_PAUSE_SECONDS = 60.0
"""Even to keep to that share, no destination goes untried for longer: it may have recovered."""

RELAPSE_SECONDS = 120.0
"""A destination that fails again sooner answers only a few events at a time, and all others wait
for it each time."""


class Parked(NamedTuple):
    """A parked destination, as it is shown to people."""

    name: str
    seconds: float
    """For how long so far."""
    why: str


class TurnedAway(NamedTuple):
    """Nothing is sent to it now."""


class Trial(NamedTuple):
    patience: float
    """Seconds that the call waits for an answer. Where a later answer would be missed, it is as
    long as the pause was: so a destination that does not answer takes at most half of one worker's
    time, and a slow one has its chance."""


@dataclass
class _Sick:
    since: float
    why: str
    pause: float
    until: float
    trying: bool = False
    tried: bool = False
    """Since the pause last grew."""
    cost: float = 0.0
    """Seconds by which its last trial made a call longer."""
    turned_away_until: float = 0.0


class Parking:
    """Shared by the threads that publish."""

    def __init__(
        self,
        clock: Callable[[], float],
        shortest: float = 0.5,
        longest: float = 15.0,
        least_patience: float = 2.0,
        brief_patience: float | None = None,
    ) -> None:
        """`brief_patience` is how many seconds a call waits for any trial, where a later answer
        counts too."""
        self._clock = clock
        self._shortest = shortest
        self._longest = longest
        self._least_patience = least_patience
        self._brief_patience = brief_patience
        self._lock = threading.Lock()
        self._sick: dict[str, _Sick] = {}
        self._recovered: dict[str, float] = {}
        """When each of them recovered."""

    def __bool__(self) -> bool:
        """Whether any is parked: called for every batch, so without the lock."""
        return bool(self._sick)

    def admit(self, name: str) -> TurnedAway | Trial | None:
        """None: send. A Trial is given to one caller at a time, who must end it by `sick`, `well`
        or `undecided`."""
        with self._lock:
            sick = self._sick.get(name)
            if sick is None:
                return None
            if sick.trying or self._clock() < sick.until:
                return TurnedAway()
            sick.trying = sick.tried = True
            return Trial(self._brief_patience or max(self._least_patience, sick.pause))

    def turn_away(self, name: str, count: int) -> float:
        """After how many seconds `count` of its events, which are not sent now, may come back:
        after the next trial, and after those that were turned away before."""
        with self._lock:
            sick = self._sick.get(name)
            if sick is None:
                return 0.0  # it has just answered another call
            now = self._clock()
            again = now + sick.pause if sick.trying else sick.until
            start = max(now, again, sick.turned_away_until)
            sick.turned_away_until = start + count / RETURNS_PER_SECOND
            return min(LONGEST_ABSENCE_SECONDS, start - now)

    def charge(self, costs: Mapping[str, float]) -> None:
        """Record for how many seconds calls waited for these trials. Called before `sick` is, for
        any of them: all of them count for the pause of each."""
        with self._lock:
            for name, cost in costs.items():
                if (known := self._sick.get(name)) is not None and known.tried:
                    known.cost = cost

    def sick(self, name: str, why: str, after: float = 0.0, cost: float = 0.0) -> bool:
        """It took nothing; `after` is for how many seconds, if it gave a number. True if it was not
        parked before: then `cost`, the seconds that calls waited for it, counts too."""
        with self._lock:
            now = self._clock()
            not_before = now + min(LONGEST_RETRY_AFTER_SECONDS, after)
            known = self._sick.get(name)
            if known is None:
                self._forget(now)
                pause = self._shortest
                until = now + (max(pause, _fair(cost)) if name in self._recovered else pause)
                self._sick[name] = _Sick(now, why, pause, max(until, not_before))
                return True
            known.why = why
            if known.tried:  # if not, it is the end of a call that began before it was parked
                known.pause = min(self._longest, 2 * known.pause)
                fair = self._fair_pause()
                known.until = now + max(known.pause, fair)
                if fair > 1:  # at a full second: so they are due together, and tried side by side
                    known.until = math.ceil(known.until)
                known.trying = known.tried = False
            known.until = max(known.until, not_before)
            return False

    def well(self, name: str) -> Parked | None:
        """It answered. Returns how it was parked, if it was."""
        with self._lock:
            known = self._sick.pop(name, None)
            if known is None:
                return None
            now = self._recovered[name] = self._clock()
            return Parked(name, now - known.since, known.why)

    def undecided(self, name: str) -> None:
        """If a trial is still open, it has ended without a result."""
        with self._lock:
            known = self._sick.get(name)
            if known is not None and known.trying:
                known.trying = False
                known.until = self._clock() + known.pause

    def parked(self) -> list[Parked]:
        """The longest parked first."""
        with self._lock:
            now = self._clock()
            self._forget(now)
            found = [Parked(name, now - s.since, s.why) for name, s in self._sick.items()]
        return sorted(found, key=lambda p: (-p.seconds, p.name))

    def _fair_pause(self) -> float:
        """If each destination pauses for this long, all trials take no more than their share."""
        return _fair(sum(sick.cost for sick in self._sick.values()))

    def _forget(self, now: float) -> None:
        forgotten = [
            n
            for n, s in self._sick.items()
            if not s.trying and now > s.until + FORGET_AFTER_SECONDS
        ]
        for name in forgotten:
            del self._sick[name]
        for name in [n for n, at in self._recovered.items() if now > at + RELAPSE_SECONDS]:
            del self._recovered[name]


def _fair(cost: float) -> float:
    """The pause with which trials of this cost take no more than their share."""
    return min(LONGEST_FAIR_PAUSE_SECONDS, cost * (1 / TRIALS_SHARE - 1))

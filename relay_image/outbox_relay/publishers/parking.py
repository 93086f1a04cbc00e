"""
Parking: which destinations take nothing now, and when each is tried again.

A destination is whatever can fail alone: a topic, an endpoint, a queue. What is for one that has
just failed would only wait for it again, and everything in the same batch would wait too. So it is
parked for a pause that grows, then a few events go first, and an answer to them ends it.

No IO, and no decision whose fault a failure was: that is `destinations`.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from outbox_core.model.attempt import LONGEST_RETRY_AFTER_SECONDS

FORGET_AFTER_SECONDS = 600.0
"""Its pause is over and nobody has tried it for so long: nothing is waiting for it any more."""

RETURNS_PER_SECOND = 2000
"""What was turned away is claimed again only to be turned away again: no more often than the
database hardly notices, however many wait."""

LONGEST_ABSENCE_SECONDS = 300.0
"""When the destination is well again, those that were turned away do not hear of it."""


class Parked(NamedTuple):
    """For people."""

    name: str
    seconds: float
    """For how long so far."""
    why: str


class Wait(NamedTuple):
    """Nothing is sent to it now."""


class Trial(NamedTuple):
    patience: float
    """Seconds to wait for an answer: as long as the pause was. So a destination that does not
    answer takes half of one worker's time at most, and one that is slow has its chance."""


@dataclass
class _Sick:
    since: float
    why: str
    pause: float
    until: float
    trying: bool = False
    tried: bool = False
    """Since the pause last grew."""
    turned_away_until: float = 0.0


class Parking:
    """Shared by the threads that publish."""

    def __init__(
        self,
        clock: Callable[[], float],
        shortest: float = 0.5,
        longest: float = 15.0,
        least_patience: float = 2.0,
    ) -> None:
        self._clock = clock
        self._shortest = shortest
        self._longest = longest
        self._least_patience = least_patience
        self._lock = threading.Lock()
        self._sick: dict[str, _Sick] = {}

    def __bool__(self) -> bool:
        """Whether any is parked: asked for every batch, so without the lock."""
        return bool(self._sick)

    def admit(self, name: str) -> Wait | Trial | None:
        """None: send. A Trial is given to one caller at a time, who must end it by one of the three
        below."""
        with self._lock:
            sick = self._sick.get(name)
            if sick is None:
                return None
            if sick.trying or self._clock() < sick.until:
                return Wait()
            sick.trying = sick.tried = True
            return Trial(max(self._least_patience, sick.pause))

    def turn_away(self, name: str, count: int) -> float:
        """Seconds before which so many of its events, which are not sent now, need not come back:
        when it was tried again, and after those who were turned away before."""
        with self._lock:
            sick = self._sick.get(name)
            if sick is None:
                return 0.0  # it has just answered somebody
            now = self._clock()
            again = now + sick.pause if sick.trying else sick.until
            start = max(now, again, sick.turned_away_until)
            sick.turned_away_until = start + count / RETURNS_PER_SECOND
            return min(LONGEST_ABSENCE_SECONDS, start - now)

    def sick(self, name: str, why: str, after: float = 0.0) -> bool:
        """It took nothing, and perhaps said for how many seconds. True if it was not parked yet."""
        with self._lock:
            now = self._clock()
            not_before = now + min(LONGEST_RETRY_AFTER_SECONDS, after)
            known = self._sick.get(name)
            if known is None:
                self._forget(now)
                pause = self._shortest
                self._sick[name] = _Sick(now, why, pause, max(now + pause, not_before))
                return True
            known.why = why
            if known.tried:  # if not, it is the end of a call that began before it was parked
                known.pause = min(self._longest, 2 * known.pause)
                known.until = now + known.pause
                known.trying = known.tried = False
            known.until = max(known.until, not_before)
            return False

    def well(self, name: str) -> Parked | None:
        """It answered. What it was, if it was parked."""
        with self._lock:
            known = self._sick.pop(name, None)
            return None if known is None else Parked(name, self._clock() - known.since, known.why)

    def undecided(self, name: str) -> None:
        """The trial has ended, and nobody knows more than before."""
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

    def _forget(self, now: float) -> None:
        gone = [
            n
            for n, s in self._sick.items()
            if not s.trying and now > s.until + FORGET_AFTER_SECONDS
        ]
        for name in gone:
            del self._sick[name]

"""
Pace and crew: when a worker claims, and which workers claim at all.

Both save work when there is little to do: one worker claims while few events arrive, waits a few
milliseconds so that a round serves more of them, and pauses longer the longer nothing comes; all
workers claim, without pauses, while there is a backlog.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from outbox_core.model.event import Claim
from outbox_core.store.tokens import fresh_token

SILENCE_SHARE = 0.1
"""The pause is a tenth of the silence so far: an event after one second of silence waits at most a
tenth of a second, an event after half a minute three seconds."""

ENOUGH_SHARE = 0.1
"""Of a full batch: no reason to wait for more. A round costs the database about the same for one
event as for fifty."""
LONGEST_GATHERING_SECONDS = 0.05
"""Even if `shortest` is longer: what was just published is only recorded with the next claim."""
BYTES_PER_CLAIM = 8 * 1024 * 1024
"""As `bytes_per_claim()` in the schema's `claim.sql`: large events fill a batch by their size."""


class Pace:
    """How long to pause after a claim that found nothing, or little."""

    def __init__(self, shortest: float, longest: float, clock: Callable[[], float]) -> None:
        self._shortest = shortest
        self._longest = longest
        self._clock = clock
        self._last = self._claimed_at = self._claimed_before = clock()

    def claims(self) -> None:
        """Called before each claim."""
        self._claimed_before, self._claimed_at = self._claimed_at, self._clock()

    def found(self) -> None:
        self._last = self._clock()

    def pause(self) -> float:
        silence = self._clock() - self._last
        return min(self._longest, max(self._shortest, silence * SILENCE_SHARE))

    def gather(self, fullness: float) -> float:
        """How long to wait for more events after a claim that filled this share of a batch.
        Counted from claim to claim; and at the rate of this claim, only until there are enough: so
        the larger the batches the shorter the wait, and a backlog does not wait."""
        since_last = self._claimed_at - self._claimed_before
        enough_after = since_last * ENOUGH_SHARE / fullness
        wait = min(self._shortest, LONGEST_GATHERING_SECONDS, enough_after)
        return max(0.0, self._claimed_at + wait - self._clock())


def fullness(batch: Sequence[Claim], limit: int) -> float:
    """Which share of the largest possible claim this is, by number or by size."""
    by_number = len(batch) / limit
    if by_number >= ENOUGH_SHARE:
        return by_number
    return max(by_number, sum(len(claim.payload) for claim in batch) / BYTES_PER_CLAIM)


class Share(NamedTuple):
    """What a worker may claim from, and the token under which the process holds it."""

    lanes: tuple[int, ...]
    holder: int | None


class Crew:
    """
    The workers of a process and the lanes that it holds.

    Worker 0 always claims; the others rest until one of them finds more than fits into one batch,
    and again when they find little.
    One worker at a time claims from a lane: lanes that another has in flight are left out.
    """

    def __init__(self, size: int, undivided: int | None) -> None:
        """`undivided` is the one lane of a relay that does not order: all workers claim from it."""
        self._changed = threading.Condition()
        self._lanes: tuple[int, ...] = () if undivided is None else (undivided,)
        self._divided = undivided is None
        self._holder: int | None = None
        self._former: set[int] = set()  # tokens under which we held the same lanes before
        self._next: int | None = None  # a token under which we may already hold them
        self._using_token = threading.Lock()
        self._awake = [i == 0 for i in range(size)]
        self._in_use: list[frozenset[int]] = [frozenset()] * size
        self._hints = 0
        self._settlements = 0
        self._stopped = False

    @property
    def lanes(self) -> tuple[int, ...]:
        return self._lanes

    @property
    def is_busy(self) -> bool:
        with self._changed:
            return any(self._awake[1:]) or any(self._in_use)

    @property
    def holder(self) -> int | None:
        return self._holder

    def become(self, holder: int | None) -> None:
        """Set the holder token; a new holder has no lanes yet. Token and lanes change together, so
        nobody claims from the lanes of one holder under the token of another."""
        with self._changed:
            self._holder, self._lanes, self._next = holder, (), None
            self._former.clear()

    @property
    def is_in_doubt(self) -> bool:
        """Is it unknown whether our token was replaced, because the answer was lost?"""
        return self._next is not None

    @contextmanager
    def steady(self) -> Iterator[int | None]:
        """The token, which does not change inside the block."""
        with self._using_token:
            yield self._holder

    def fenced(self, holder: int, fence: Callable[[int, int], bool]) -> int | None:
        """A connection was lost that used `holder`: replace that token by one that it does not
        know, only once even if several connections were lost. None if the lanes are no longer ours.
        If the answer is lost, the next call repeats it with the same token."""
        with self._using_token:
            if holder == self._holder:
                if self._next is None:
                    self._next = fresh_token()
                fresh = self._next
                is_holder = fence(holder, fresh)
                self._next = None
                if not is_holder:
                    return None
                with self._changed:
                    self._former.add(holder)
                    self._holder = fresh
                return fresh
            return self._holder if holder in self._former else None

    def share(self, worker: int) -> Share:
        """The lanes to claim from next. The worker's previous lanes stay in use too, because that
        batch is not finalised yet: see `settled`."""
        with self._changed:
            if not self._divided:
                return Share(self._lanes, None)
            if not self._awake[worker]:
                return Share((), self._holder)
            awake = [i for i, is_awake in enumerate(self._awake) if is_awake]
            others = frozenset().union(*(u for i, u in enumerate(self._in_use) if i != worker))
            mine = self._lanes[awake.index(worker) :: len(awake)]
            mine = tuple(lane for lane in mine if lane not in others)
            self._in_use[worker] |= frozenset(mine)
            return Share(mine, self._holder)

    def settled(self, worker: int, share: Share) -> None:
        """Everything that the worker claimed before this share is finalised."""
        with self._changed:
            self._in_use[worker] = frozenset(share.lanes)
            self._settlements += 1
            self._changed.notify_all()

    def wake(self) -> None:
        """Wake all workers: there is more than one worker can do."""
        with self._changed:
            if not all(self._awake):
                self._awake = [True] * len(self._awake)
                self._changed.notify_all()

    def rest(self, worker: int, seconds: float) -> None:
        """Nothing is in flight. Worker 0 waits for this long, or until a hint; the others until
        `wake`."""
        with self._changed:
            self._in_use[worker] = frozenset()
            if worker == 0:
                hints = self._hints
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._stopped or self._hints != hints, seconds)
            else:
                self._awake[worker] = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._stopped or self._awake[worker])

    def wait_for_lanes(self, worker: int, seconds: float) -> None:
        """Other workers have our share in flight; wait until one of them has settled. A worker
        without a share rests."""
        with self._changed:
            self._in_use[worker] = frozenset()
            self._changed.notify_all()
            if self._awake[worker] and self._lanes:
                settlements = self._settlements
                self._changed.wait_for(
                    lambda: self._stopped or self._settlements != settlements, seconds
                )
                return
        self.rest(worker, seconds)

    def hint(self) -> None:
        """There may be new events: worker 0 claims at once."""
        with self._changed:
            self._hints += 1
            self._changed.notify_all()

    def add(self, lanes: Iterable[int]) -> None:
        with self._changed:
            self._lanes = tuple(sorted({*self._lanes, *lanes}))

    def remove(self, lanes: Iterable[int], timeout: float) -> bool:
        """Stop claiming from these; True once nothing of them is in flight."""
        gone = frozenset(lanes)
        with self._changed:
            self._lanes = tuple(lane for lane in self._lanes if lane not in gone)
            return self._changed.wait_for(
                lambda: not any(gone & used for used in self._in_use), timeout
            )

    def stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._awake = [True] * len(self._awake)
            self._changed.notify_all()

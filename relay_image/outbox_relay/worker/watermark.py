"""
The low watermark: below it nothing is in line, so a claim need not scan there.

Why: a transaction that stays open anywhere in the database preserves the index entries of
everything that was processed since; a scan from the beginning would step over them again and again.
Why not simply the last seq we saw: seqs are drawn before they are committed, and a smaller one may
commit later.

So the watermark moves up to a seq only when every transaction that could have drawn a smaller one
has ended. If one stays open for long, the scan starts ahead of it, and from time to time a sweep
from the beginning finds what was committed late; sweeps take a bounded share of the time. A sweep
also finds what a relay that died in the middle of a claim left in line.

All this is valid for one server only. After a failover that lost commits, or a restore, the same
seqs are handed out again. So a watermark does not outlive its connection; and because the server
may change behind a pooler, a claim also sends which server its floor is from.
"""

from collections import deque
from collections.abc import Callable
from datetime import datetime

from outbox_core.store.deliveries import Mark

MARK_EVERY_SECONDS = 0.1
MOST_MARKS = 1000
SWEEP_SHARE = 0.05
"""At most this share of the time is spent on sweeps while a transaction with an id stays open."""
SWEEP_SOON_SECONDS = 0.5
SWEEP_SELDOM_SECONDS = 20.0
FAR_AHEAD_SEQS = 5_000
"""If the line starts this far ahead of the safe mark, it pays to start there and sweep."""


class Watermark:
    """Owned by one worker thread; times are of the process's monotonic clock."""

    def __init__(
        self,
        clock: Callable[[], float],
        in_order: bool = False,
        sweep_every: float = float("inf"),
    ) -> None:
        """`sweep_every`: seconds; the longest time that an event of a dead process waits."""
        self._clock = clock
        self._sweep_every = min(SWEEP_SELDOM_SECONDS, sweep_every)
        # With ordering, a scan must not start ahead: later events of a key would overtake an event
        # that commits late.
        self._in_order = in_order
        self._forget()
        self._moving = True
        self._marked_at = clock() - MARK_EVERY_SECONDS
        self._swept_at = clock()
        self._sweep_took = 0.0

    @property
    def wants_mark(self) -> bool:
        """While no events arrive, the watermark cannot move."""
        return self._moving and self._clock() - self._marked_at >= MARK_EVERY_SECONDS

    @property
    def safe(self) -> int:
        return self._safe

    @property
    def server(self) -> datetime | None:
        """The server that the floor is from, by its start time; None: not known yet."""
        return self._server

    def reset(self) -> None:
        """We claim from other lanes now: what we know is not valid for them."""
        self._safe = self._ahead = 0

    def _forget(self) -> None:
        """Another server: nothing that we know is valid for it."""
        self._server: datetime | None = None
        self._marks: deque[tuple[int, int]] = deque()
        self._decided = 0
        self.reset()

    def floor(self) -> int:
        """Where the next claim starts: above this seq."""
        lagging = not self._in_order and self._ahead - self._safe > FAR_AHEAD_SEQS
        pause = SWEEP_SOON_SECONDS if lagging else self._sweep_every
        if self._clock() - self._swept_at > max(pause, self._sweep_took / SWEEP_SHARE):
            return 0
        return self._ahead if lagging else self._safe

    def saw(
        self, floor: int, first: int | None, mark: Mark | None, took: float, scanned: bool = True
    ) -> None:
        """
        Record a claim from `floor` that took `took` seconds: `first` is the smallest seq that was
        in line (None: nothing was, or the line was not `scanned`), `mark` is what the database
        reported about its transactions just before.
        """
        self._moving = first is not None
        if mark is not None:
            self._marked_at = self._clock()
            if mark.server != self._server:
                self._forget()
                self._server = mark.server
                floor = 0  # the claim treated it as 0
            if len(self._marks) < MOST_MARKS:
                self._marks.append((mark.seq, mark.xid))
            while self._marks and self._marks[0][1] <= mark.horizon:
                self._decided = self._marks.popleft()[0]
        if first is not None:
            if first <= self._safe:  # a claim that had locked it was rolled back: there may be more
                self._safe = self._ahead = first - 1
            elif floor <= self._safe:  # otherwise the claim skipped what may have committed late
                self._safe = max(self._safe, min(first - 1, self._decided))
            self._ahead = max(self._ahead, first - 1)
        if floor == 0 and scanned:
            self._swept_at = self._clock()
            self._sweep_took = took

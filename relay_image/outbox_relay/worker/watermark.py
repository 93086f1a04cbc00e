"""
The low watermark: below it nothing is in line, so a claim need not scan there.

Why: a transaction that stays open anywhere in the database keeps the index entries of all that was
worked off since; a scan from the beginning steps over them again and again. Why not simply the
last seq we saw: seqs are drawn before they are committed, and a smaller one may commit later.

So the watermark moves up to a seq only when every transaction that could have drawn a smaller one
has ended. Where one stays open for long, the scan starts ahead of it, and from time to time a
sweep from the very beginning finds what was committed late, at a bounded share of the time. The
sweep also finds what a relay that died in the middle of a claim left in line.

All of it holds for one server. After a failover that lost commits, or a restore, the same seqs are
given out again. So a watermark does not outlive its connection; and since behind a pooler the
server may change without that, a claim carries along whose floor it is.
"""

from collections import deque
from collections.abc import Callable
from datetime import datetime

from outbox_core.store.deliveries import Mark

MARK_EVERY_SECONDS = 0.1
MOST_MARKS = 1000
SWEEP_SHARE = 0.05
"""Of the time, at most, spent on sweeps while a transaction with an id stays open."""
SWEEP_SOON_SECONDS = 0.5
SWEEP_SELDOM_SECONDS = 20.0
FAR_AHEAD_SEQS = 5_000
"""So many seqs ahead of the safe mark it pays to start there and sweep."""


class Watermark:
    """Owned by one worker thread; the times are that process's monotonic clock."""

    def __init__(
        self,
        clock: Callable[[], float],
        in_order: bool = False,
        sweep_every: float = float("inf"),
    ) -> None:
        """`sweep_every`: seconds; what a dead process left in line is not to wait for longer."""
        self._clock = clock
        self._sweep_every = min(SWEEP_SELDOM_SECONDS, sweep_every)
        # In order nothing may start ahead: what commits late would be overtaken by its own key.
        self._in_order = in_order
        self._forget()
        self._moving = True
        self._marked_at = clock() - MARK_EVERY_SECONDS
        self._swept_at = clock()
        self._sweep_took = 0.0

    @property
    def wants_mark(self) -> bool:
        """While nothing comes there is nothing to move up to."""
        return self._moving and self._clock() - self._marked_at >= MARK_EVERY_SECONDS

    @property
    def safe(self) -> int:
        return self._safe

    @property
    def server(self) -> datetime | None:
        """Whose floor it is, by when that server was started; None: as yet nobody's."""
        return self._server

    def reset(self) -> None:
        """We claim from other lanes than before: what we know does not hold for them."""
        self._safe = self._ahead = 0

    def _forget(self) -> None:
        """Another server: nothing that we know holds for it."""
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
        After a claim from `floor` that took so long: the smallest seq that was in line (None:
        nothing was, or nobody `scanned`), and what the database reported, just before, about
        its transactions.
        """
        self._moving = first is not None
        if mark is not None:
            self._marked_at = self._clock()
            if mark.server != self._server:
                self._forget()
                self._server = mark.server
                floor = 0  # as the claim took it
            if len(self._marks) < MOST_MARKS:
                self._marks.append((mark.seq, mark.xid))
            while self._marks and self._marks[0][1] <= mark.horizon:
                self._decided = self._marks.popleft()[0]
        if first is not None:
            if first <= self._safe:  # a claim that had locked it was rolled back: there may be more
                self._safe = self._ahead = first - 1
            elif floor <= self._safe:  # otherwise the claim skipped what may have come late
                self._safe = max(self._safe, min(first - 1, self._decided))
            self._ahead = max(self._ahead, first - 1)
        if floor == 0 and scanned:
            self._swept_at = self._clock()
            self._sweep_took = took

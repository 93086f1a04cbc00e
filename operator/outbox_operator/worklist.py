"""
The worklist: which resources to reconcile, and when.

Two workers never have the same resource; a change during its reconcile makes it due again. After a
failure it comes back after a growing pause.
"""

import asyncio
import contextlib
import heapq
import random
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

Item = TypeVar("Item")

BURST_SECONDS = 0.2
"""The time between a change and the reconcile: a burst of changes is one reconcile."""
TOGETHER_SECONDS = 5.0
"""A resource that is due after a pause of more than twice this comes at a multiple of it, up to
this much earlier. So the process wakes up for many resources at once: five hundred idle ones that
wake it up one by one cost a fifth more."""
FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 60.0


class Worklist(Generic[Item]):
    def __init__(self, reconcile: Callable[[Item], Awaitable[float | None]], workers: int) -> None:
        """`reconcile` returns after how many seconds to call it again; None: only after a change.
        It raises an error if it could not finish now."""
        self._reconcile = reconcile
        self._workers = workers
        self._due: dict[Item, float] = {}
        self._order: list[tuple[float, int, Item]] = []
        self._serial = 0
        self._busy: set[Item] = set()
        self._again: set[Item] = set()
        self._failures: dict[Item, int] = {}
        self._new = asyncio.Event()
        """Something is due earlier than all that was known."""
        self._turn = asyncio.Lock()
        """Held by the worker that gets the next item. The others wait for it; otherwise each of
        them would wake up with every item, for nothing."""
        self._moved = 0.0

    def changed(self, key: Item) -> None:
        """Reconcile it soon. May be called from anywhere in the loop's thread."""
        if key in self._busy:
            self._again.add(key)
        else:
            self._at(key, asyncio.get_running_loop().time() + BURST_SECONDS)

    def start(self) -> list[asyncio.Task[None]]:
        return [asyncio.create_task(self._work(), name=f"worker {i}") for i in range(self._workers)]

    @property
    def stalled(self) -> float:
        """For how many seconds something has been due while no worker started or finished
        anything."""
        now = asyncio.get_running_loop().time()
        first = min(self._due.values(), default=now)
        return max(0.0, now - max(first, self._moved))

    def _at(self, key: Item, when: float) -> None:
        if key in self._due and self._due[key] <= when:
            return
        self._due[key] = when
        self._serial += 1
        first = (when, self._serial, key)
        heapq.heappush(self._order, first)
        if self._order[0] is first:
            self._new.set()

    async def _next(self) -> Item:
        async with self._turn:
            return await self._first()

    async def _first(self) -> Item:
        loop = asyncio.get_running_loop()
        while True:
            self._new.clear()
            while self._order and self._due.get(self._order[0][2]) != self._order[0][0]:
                heapq.heappop(self._order)  # it was moved to an earlier time
            wait = self._order[0][0] - loop.time() if self._order else None
            if wait is not None and wait <= 0:
                _, _, key = heapq.heappop(self._order)
                del self._due[key]
                self._busy.add(key)
                self._moved = loop.time()
                return key
            # Not wait_for: in Python 3.11 it loses a cancellation that comes with the event.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._new.wait()

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            key = await self._next()
            try:
                again = await self._reconcile(key)
                self._failures.pop(key, None)
            except Exception:  # `reconcile` has logged it; here we only decide when to try again
                failures = self._failures[key] = self._failures.get(key, 0) + 1
                pause = min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2 ** min(failures - 1, 10))
                again = pause * random.uniform(0.8, 1.2)
            finally:
                self._busy.discard(key)
                self._moved = loop.time()
            if key in self._again:
                self._again.discard(key)
                again = BURST_SECONDS if again is None else min(again, BURST_SECONDS)
            if again is not None:
                self._at(key, together(loop.time(), again))


def together(now: float, pause: float) -> float:
    """When a pause ends that begins now."""
    end = now + pause
    return end if pause < 2 * TOGETHER_SECONDS else end // TOGETHER_SECONDS * TOGETHER_SECONDS

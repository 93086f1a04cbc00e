"""The worklist: nothing is forgotten, nothing is done twice at once."""

import asyncio
from collections.abc import Awaitable, Callable

from outbox_operator import worklist
from outbox_operator.worklist import Worklist


async def working(list_: "Worklist[str]", until: Callable[[], bool]) -> None:
    tasks = list_.start()
    try:
        async with asyncio.timeout(5):
            while not until():
                await asyncio.sleep(0.01)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(test())  # type: ignore[arg-type]


def test_changes_that_come_together_are_looked_at_once() -> None:
    looked: list[str] = []

    async def look(key: str) -> None:
        looked.append(key)

    async def test() -> None:
        items = Worklist(look, workers=2)
        for _ in range(10):
            items.changed("a")
        items.changed("b")
        await working(items, lambda: len(looked) >= 2)
        assert sorted(looked) == ["a", "b"]

    run(test)


def test_what_changes_while_it_is_looked_at_is_looked_at_again_and_never_at_once() -> None:
    inside = 0
    most = 0
    looks = 0

    async def test() -> None:
        async def look(key: str) -> None:
            nonlocal inside, most, looks
            inside += 1
            most = max(most, inside)
            looks += 1
            if looks == 1:
                items.changed(key)
            await asyncio.sleep(0.05)
            inside -= 1

        items = Worklist(look, workers=4)
        items.changed("a")
        await working(items, lambda: looks == 2 and not inside)
        assert most == 1

    run(test)


def test_what_failed_is_tried_again() -> None:
    looks = 0

    async def look(key: str) -> None:
        nonlocal looks
        looks += 1
        if looks == 1:
            raise RuntimeError("not now")

    async def test() -> None:
        items = Worklist(look, workers=1)
        items.changed("a")
        await working(items, lambda: looks == 2)

    run(test)
    assert worklist.FIRST_PAUSE_SECONDS <= 2


def test_who_wants_to_look_again_does() -> None:
    looks = 0

    async def look(key: str) -> float:
        nonlocal looks
        looks += 1
        return 0.01

    async def test() -> None:
        items = Worklist(look, workers=1)
        items.changed("a")
        await working(items, lambda: looks >= 3)

    run(test)


def test_a_change_comes_before_the_next_look_by_the_clock() -> None:
    looked: list[str] = []

    async def look(key: str) -> float:
        looked.append(key)
        return 3600

    async def test() -> None:
        items = Worklist(look, workers=1)
        items.changed("a")
        await working(items, lambda: len(looked) == 1)
        items.changed("a")
        await working(items, lambda: len(looked) == 2)

    run(test)


def test_one_that_does_not_move_although_something_is_due_says_so() -> None:
    async def look(key: str) -> float:
        if key == "hangs":
            await asyncio.sleep(60)
        return 3600

    async def test() -> None:
        items = Worklist(look, workers=1)
        assert items.stalled == 0
        items.changed("ends")
        await working(items, lambda: not items._due.keys() - {"ends"} and bool(items._moved))
        assert items.stalled == 0  # nothing is due
        items.changed("hangs")
        items.changed("waits")
        await working(items, lambda: items.stalled > 0.1)
        assert set(items._due) == {"ends", "waits"}

    run(test)


def test_a_change_that_comes_as_it_is_stopped_keeps_no_worker() -> None:
    looked = asyncio.Event()

    async def look(_: str) -> float:
        looked.set()
        return 60.0

    async def test() -> None:
        items = Worklist(look, workers=3)
        tasks = items.start()
        items.changed("later")
        await looked.wait()
        for _ in range(10):  # turns of the loop: then all wait for what is due in a minute
            await asyncio.sleep(0)
        items.changed("now")
        for task in tasks:
            task.cancel()
        _, left = await asyncio.wait(tasks, timeout=5)
        assert not left

    run(test)


def test_many_that_come_back_by_the_clock_come_back_together() -> None:
    period = worklist.TOGETHER_SECONDS
    ends = {worklist.together(1000.0 + n / 100, 30.0) for n in range(int(period * 100))}
    assert len(ends) == 1  # they began at different times, within one period
    (end,) = ends
    assert 30.0 - period < end - 1000.0 <= 30.0  # never later than each asked for
    assert worklist.together(end + 0.2, 30.0) == end + 30.0  # and from then on as often as asked


def test_a_short_pause_is_not_shortened() -> None:
    assert worklist.together(1003.0, 2.0) == 1005.0
    assert worklist.together(1004.5, 2.0) == 1006.5


def test_only_one_worker_wakes_up_for_what_is_due() -> None:
    """The others would look, find nothing, and wait again: with every item."""
    begun: list[int] = []
    looked = asyncio.Event()

    class Counting(Worklist[str]):
        async def _first(self) -> str:
            begun.append(1)
            return await super()._first()

    async def look(_: str) -> None:
        looked.set()

    async def test() -> None:
        items = Counting(look, workers=8)
        tasks = items.start()
        for _ in range(3):
            await asyncio.sleep(0)
        assert len(begun) == 1
        items.changed("a")
        await looked.wait()
        for _ in range(3):
            await asyncio.sleep(0)
        assert len(begun) == 2
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    run(test)

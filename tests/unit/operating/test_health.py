"""/healthz: the truth about what only a restart can cure; /readyz: whether it does its work."""

import asyncio

import aiohttp

from outbox_operator import program
from outbox_operator.metrics import Metrics
from outbox_operator.program import Operator
from outbox_operator.server import serve
from outbox_operator.settings import OperatorSettings
from outbox_operator.shared.objects import Key
from outbox_operator.worklist import Worklist


def test_the_port_says_what_is_wrong() -> None:
    found: str | None = None
    ready = (False, "these watches do not work: ...")

    async def test() -> None:
        nonlocal found, ready
        runner = await serve(Metrics().registry, 0, lambda: found, lambda: ready)
        port = f"http://127.0.0.1:{runner.addresses[0][1]}"
        url = f"{port}/healthz"
        try:
            async with aiohttp.ClientSession() as session:
                async with session.get(url) as answer:
                    assert (answer.status, await answer.text()) == (200, "alive\n")
                found = "watch pods has ended"
                async with session.get(url) as answer:
                    assert (answer.status, await answer.text()) == (503, f"{found}\n")
                async with session.get(f"{port}/readyz") as answer:
                    assert (answer.status, await answer.text()) == (503, f"{ready[1]}\n")
                ready = (True, "ready")
                async with session.get(f"{port}/readyz") as answer:
                    assert (answer.status, await answer.text()) == (200, "ready\n")
        finally:
            await runner.cleanup()

    asyncio.run(test())


def test_a_task_that_has_died_is_told() -> None:
    async def dies() -> None:
        raise RuntimeError

    async def test() -> None:
        operator = Operator(OperatorSettings())
        assert operator.trouble() is None  # it waits for its kinds
        lives = asyncio.create_task(asyncio.sleep(60, None), name="worker 0")
        operator._tasks = [lives]
        assert operator.trouble() is None
        operator._tasks.append(asyncio.create_task(dies(), name="watch pods"))
        await asyncio.sleep(0)
        assert operator.trouble() == "watch pods has ended"
        await operator.stop()

    asyncio.run(test())


def test_a_worklist_that_stands_still_is_told() -> None:
    class Stalled(Worklist[Key]):
        seconds = 0.0

        @property
        def stalled(self) -> float:
            return self.seconds

    async def look(_: Key) -> None:
        pass

    operator = Operator(OperatorSettings())
    items = operator._worklist = Stalled(look, workers=1)
    assert operator.trouble() is None
    items.seconds = program.STALLED_SECONDS + 1
    assert "no resource was reconciled" in (operator.trouble() or "")

"""
Runs suites in lanes, and reports when each begins and how it ends.

Called by `__main__`. A suite is a pytest process in a session of its own: when we are interrupted
it is too, once, and has time to stop its servers; when we are killed the kernel interrupts it.
"""

import asyncio
import signal
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from .lanes import Lane
from .results import Result, read_result
from .suites import Suite

ROOT = Path(__file__).resolve().parents[2]
PYTEST = Path(sys.executable).with_name("pytest")
ENDS_WITHIN_SECONDS = 120
"""After an interrupt: servers stop, and a cluster may be on its way up or down."""


class Run:
    def __init__(self, suites: Iterable[Suite], output: Path) -> None:
        self._waiting = list(suites)
        self._output = output
        self._begin = time.monotonic()
        self._processes: set[asyncio.subprocess.Process] = set()
        self.results: list[Result] = []

    @property
    def elapsed_seconds(self) -> float:
        return time.monotonic() - self._begin

    async def in_lanes(self, lanes: Sequence[Lane]) -> None:
        """Until none is waiting. When cancelled, those that run are ended first."""
        async with asyncio.TaskGroup() as group:
            for lane in lanes:
                group.create_task(self._in_lane(lane))
        for suite in self._waiting:  # those that nothing may run beside
            await self._run(suite, lanes[0])

    def kill(self) -> None:
        """What runs, at once; its servers go with it."""
        for process in self._processes:
            with suppress(ProcessLookupError):
                process.kill()

    async def _in_lane(self, lane: Lane) -> None:
        while suite := self._next_for(lane):
            await self._run(suite, lane)

    def _next_for(self, lane: Lane) -> Suite | None:
        suite = lane.next_of(self._waiting)
        if suite:
            self._waiting.remove(suite)
        return suite

    async def _run(self, suite: Suite, lane: Lane) -> None:
        file = self._output / suite.name.replace("/", "-")
        log, report = file.with_suffix(".log"), file.with_suffix(".xml")
        self._say(f"{suite.name} begins in lane {lane.number}")
        begin = time.monotonic()
        with log.open("wb") as written:
            process = await asyncio.create_subprocess_exec(
                *("setpriv", "--pdeathsig=INT", "--", PYTEST, "-q", suite.folder),
                f"--junitxml={report}",
                # Of several at once, the last would overwrite what the others have kept.
                *("-p", "no:cacheprovider"),
                cwd=ROOT,
                env=lane.environ,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=written,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
            )
        self._processes.add(process)
        try:
            code = await process.wait()
        finally:
            await _end(process)
            self._processes.remove(process)
        result = read_result(suite.name, report, code, time.monotonic() - begin)
        self.results.append(result)
        self._say(str(result))
        if not result.passed:
            print(f"\n{log.read_text(errors='replace')}", flush=True)

    def _say(self, text: str) -> None:
        minutes, seconds = divmod(int(self.elapsed_seconds), 60)
        print(f"tests: {minutes:3}:{seconds:02}  {text}", flush=True)


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    with suppress(ProcessLookupError):
        process.send_signal(signal.SIGINT)
    try:
        await asyncio.wait_for(process.wait(), ENDS_WITHIN_SECONDS)
    except TimeoutError:
        process.kill()
        await process.wait()

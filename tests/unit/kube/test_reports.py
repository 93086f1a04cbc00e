"""Pods are asked for their report; one that never answers is not waited for at each look."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from fixtures.made_seen import report
from outbox_core.contract.report import Report
from outbox_operator.kube import reports
from outbox_operator.kube.reports import FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS, Reporters

POD = ("orders-relay-a", "127.0.0.1")


class Relay:
    """On a port; it says how often it was asked."""

    def __init__(self) -> None:
        self.asked = 0
        self.silent = False
        self.broken = False
        """A proxy answers in its place."""
        self.port = 0
        self.now = 1000.0

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.asked += 1
        if self.silent:
            await asyncio.sleep(5)
        if self.broken:
            return web.Response(text="upstream connect error", status=503)
        return web.Response(text=report().model_dump_json(by_alias=True))

    @asynccontextmanager
    async def asking(self) -> AsyncIterator[Reporters]:
        app = web.Application()
        app.router.add_get("/status", self.answer)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.port = runner.addresses[0][1]
        reporters = Reporters(lambda: self.now)
        try:
            yield reporters
        finally:
            await runner.cleanup()

    async def is_heard(self, reporters: Reporters) -> bool:
        return bool(await reporters.ask([POD], self.port, Report))


@pytest.fixture
def relay(monkeypatch: pytest.MonkeyPatch) -> Relay:
    monkeypatch.setattr(reports, "ANSWER_SECONDS", 0.05)
    return Relay()


def test_one_answer_that_was_missed_is_asked_for_at_the_next_look(relay: Relay) -> None:
    async def test() -> None:
        async with relay.asking() as reporters:
            relay.silent = True
            assert not await relay.is_heard(reporters)
            relay.silent = False
            assert await relay.is_heard(reporters)

    asyncio.run(test())


def test_a_pod_that_stays_silent_is_asked_less_and_less(relay: Relay) -> None:
    async def test() -> None:
        async with relay.asking() as reporters:
            relay.silent = True
            for _ in range(5):
                assert not await relay.is_heard(reporters)
            assert relay.asked == 2
            relay.now += FIRST_PAUSE_SECONDS
            for _ in range(5):
                assert not await relay.is_heard(reporters)
            assert relay.asked == 3
            for _ in range(20):
                relay.now += LONGEST_PAUSE_SECONDS
                assert not await relay.is_heard(reporters)
            assert relay.asked == 23  # never given up
            relay.silent = False
            relay.now += LONGEST_PAUSE_SECONDS
            assert await relay.is_heard(reporters)
            assert await relay.is_heard(reporters)  # at every look again

    asyncio.run(test())


def test_a_pod_that_does_not_listen_yet_is_asked_at_every_look(relay: Relay) -> None:
    async def test() -> None:
        async with relay.asking() as reporters:
            port, relay.port = relay.port, 1
            for _ in range(5):
                assert not await relay.is_heard(reporters)
            relay.port = port
            assert await relay.is_heard(reporters)

    asyncio.run(test())


@pytest.mark.parametrize("how", ["refuses", "swallows", "is another"])
def test_for_how_long_a_pod_has_not_answered_is_known_whatever_the_cause(
    relay: Relay, how: str
) -> None:
    async def test() -> None:
        async with relay.asking() as reporters:
            port = relay.port
            assert await relay.is_heard(reporters)
            assert reporters.unanswered(POD[0]) == 0
            relay.silent = how == "swallows"
            relay.port = 1 if how == "refuses" else port
            relay.broken = how == "is another"
            assert not await relay.is_heard(reporters)
            relay.now += 40
            assert not await relay.is_heard(reporters)
            assert reporters.unanswered(POD[0]) == 40
            relay.silent, relay.broken, relay.port = False, False, port
            relay.now += FIRST_PAUSE_SECONDS
            assert await relay.is_heard(reporters)
            assert reporters.unanswered(POD[0]) == 0

    asyncio.run(test())

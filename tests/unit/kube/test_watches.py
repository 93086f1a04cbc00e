"""Watches and probes: what works is told as it is, also of what Kopf watches."""

import asyncio
import logging
from collections.abc import Callable

import pytest
from aiohttp import web

from fixtures.answering import answering
from fixtures.made_resources import relay_body
from outbox_operator.kube.api import ApiError, Unreachable
from outbox_operator.kube.kinds import CHILDREN, CUSTOM, SPARK_APPLICATIONS
from outbox_operator.kube.watch.informer import Informer
from outbox_operator.kube.watch.probe import UNREPORTED_SECONDS, Probe, Unreported
from outbox_operator.kube.watch.state import Watch
from outbox_operator.kube.watch.watches import Watches
from outbox_operator.program import Operator
from outbox_operator.settings import OperatorSettings

DEPLOYMENTS = CHILDREN["Deployment"]
RELAYS = CUSTOM["OutboxRelay"]
FORBIDDEN = ApiError(403, "Forbidden", "no", frozenset())


class Server:
    """Which may refuse to list, or to watch."""

    def __init__(self) -> None:
        self.refuses: str | None = None
        self.items = [relay_body()]

    async def answer(self, request: web.Request) -> web.StreamResponse:
        verb = "watch" if "watch" in request.query else "list"
        if verb == self.refuses:
            return web.json_response({"reason": "Forbidden", "message": verb}, status=403)
        if verb == "watch":
            response = web.StreamResponse()
            await response.prepare(request)
            await asyncio.sleep(5)
            return response
        metadata = {"resourceVersion": "1"}
        return web.json_response({"apiVersion": "v1", "metadata": metadata, "items": self.items})


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not true():
            await asyncio.sleep(0.01)


def test_a_watch_is_known_from_the_start_and_kinds_of_others_are_none() -> None:
    told: list[Watch] = []
    watches = Watches(told.append)
    watches.expect(DEPLOYMENTS, "shop")
    watches.expect(SPARK_APPLICATIONS, "shop")
    assert watches.all == told == [Watch("Deployment", "deployments.apps", "shop")]
    watches.fails(SPARK_APPLICATIONS, "shop", FORBIDDEN)
    assert len(told) == 1
    watches.fails(DEPLOYMENTS, "shop", FORBIDDEN)
    assert (watches.all[0].synced, watches.all[0].forbidden) == (False, True)
    watches.works(DEPLOYMENTS, "shop")
    watches.works(DEPLOYMENTS, "shop")
    assert [w.synced for w in told] == [False, False, True]


@pytest.mark.parametrize("refused", ["list", "watch"])
def test_an_informer_works_when_it_may_list_and_watch(refused: str) -> None:
    server = Server()
    server.items = []

    async def test() -> None:
        told: list[Watch] = []
        watches = Watches(told.append)
        watches.expect(DEPLOYMENTS, "shop")
        async with answering(server.answer) as api:
            server.refuses = refused
            informer = Informer(api, DEPLOYMENTS, "shop", lambda _: None, watches)
            task = asyncio.create_task(informer.run())
            try:
                await until(lambda: watches.all[0].trouble == refused)
                await until(lambda: len(told) > 3)  # several attempts
                assert not any(watch.synced for watch in told)
                server.refuses = None
                await until(lambda: watches.all[0].synced)
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    asyncio.run(test())


def test_a_probe_asks_for_what_kopf_asks_for() -> None:
    server = Server()

    async def test() -> None:
        async with answering(server.answer) as api:
            probe = Probe(api, RELAYS, None, Watches(lambda _: None), lambda _: True)
            await probe.ask()
            for refused in ("list", "watch"):
                server.refuses = refused
                with pytest.raises(ApiError, match=refused):
                    await probe.ask()

    asyncio.run(test())


def test_what_is_there_and_never_comes_from_kopf_is_noticed() -> None:
    server, now = Server(), 0.0
    known: set[tuple[str, str, str]] = set()

    async def test() -> None:
        nonlocal now
        async with answering(server.answer) as api:
            watches = Watches(lambda _: None)
            probe = Probe(api, RELAYS, None, watches, known.__contains__, lambda: now)
            await probe.ask()
            now += UNREPORTED_SECONDS
            await probe.ask()  # Kopf may take its time
            now += 1
            with pytest.raises(Unreported, match="OutboxRelay shop/orders"):
                await probe.ask()
            known.add(("OutboxRelay", "shop", "orders"))
            await probe.ask()

    asyncio.run(test())


def test_a_watch_that_fails_is_logged_once_in_a_while_and_when_it_works_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    operator = Operator(OperatorSettings())
    watches = operator._watches
    with caplog.at_level(logging.INFO):
        watches.expect(DEPLOYMENTS, "shop")
        watches.works(DEPLOYMENTS, "shop")
        assert caplog.records == []  # what goes well is not told
        for _ in range(3):
            watches.fails(DEPLOYMENTS, "shop", FORBIDDEN)
        watches.works(DEPLOYMENTS, "shop")
        watches.fails(DEPLOYMENTS, "shop", Unreachable("refused"))
    told = [(r.levelname, r.getMessage().partition(":")[0]) for r in caplog.records]
    cannot = ("WARNING", "cannot watch deployments.apps in namespace shop")
    assert told == [cannot, ("INFO", "watching deployments.apps in namespace shop"), cannot]


def test_the_metric_follows_every_watch() -> None:
    operator = Operator(OperatorSettings())

    def value() -> float | None:
        labels = {"kind": "Deployment", "watched_namespace": "*"}
        return operator._metrics.registry.get_sample_value("outbox_operator_watch_synced", labels)

    operator._watches.expect(DEPLOYMENTS, None)
    assert value() == 0
    operator._watches.works(DEPLOYMENTS, None)
    assert value() == 1
    operator._watches.fails(DEPLOYMENTS, None, FORBIDDEN)
    assert value() == 0

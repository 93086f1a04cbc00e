"""Namespaces that are named: one that is gone, or may not be read, costs only itself."""

import asyncio
import itertools
import logging
from collections import Counter
from typing import Any

import pytest
from aiohttp import web

from fixtures.answering import answering
from fixtures.made_resources import relay_body
from outbox_operator.handlers import Patience
from outbox_operator.kube.api import Api
from outbox_operator.kube.kinds import CUSTOM_API
from outbox_operator.program import Operator
from outbox_operator.settings import OperatorSettings

KINDS = [{"name": "outboxrelays"}, {"name": "outboxreplays"}]


def relay_in(namespace: str) -> dict[str, Any]:
    body = relay_body(namespace=namespace)
    body["metadata"]["uid"] = namespace
    return body


class Server:
    """It has one relay in each namespace, and refuses everything in those that are closed."""

    def __init__(self) -> None:
        self.closed = {"gone"}
        self.reported: list[str] = []
        self.refused: Counter[str] = Counter()
        """By path: how many requests were refused."""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if request.path == CUSTOM_API:
            return web.json_response({"resources": KINDS})
        namespace = request.path.partition("/namespaces/")[2].partition("/")[0]
        if namespace in self.closed:
            self.refused[request.path] += 1
            body = {"reason": "Forbidden", "message": f"no rights in {namespace}"}
            return web.json_response(body, status=403)
        if "watch" in request.query:
            response = web.StreamResponse()
            await response.prepare(request)
            await asyncio.sleep(60)
        if request.method == "GET" and {"labelSelector", "limit"} & request.query.keys():
            return web.json_response({"apiVersion": "v1", "metadata": {"resourceVersion": "1"}})
        if request.method == "GET" and "/outboxrelays/" in request.path:
            return web.json_response(relay_in(namespace))
        if request.method == "GET":
            return web.json_response({"reason": "NotFound"}, status=404)
        if request.path.endswith("/status"):
            self.reported.append(namespace)
        made = await request.json()
        made.setdefault("metadata", {})["resourceVersion"] = "2"
        return web.json_response(made)


def test_a_namespace_that_cannot_be_read_keeps_no_other_waiting(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    server = Server()

    async def until_reported(*namespaces: str) -> None:
        async with asyncio.timeout(60):
            while set(server.reported) != set(namespaces):
                await asyncio.sleep(0.01)

    async def test() -> None:
        async with answering(server.answer) as api:

            async def connect() -> Api:
                return api

            monkeypatch.setattr(Api, "connect", connect)
            operator = Operator(OperatorSettings(port=0, namespaces=("gone", "shop")))
            await operator.start()
            try:
                for namespace in ("gone", "shop"):
                    event = {"type": "ADDED", "object": relay_in(namespace)}
                    operator.noticed("OutboxRelay", namespace, "orders", event)
                await until_reported("shop")
                async with asyncio.timeout(60):
                    while max(server.refused.values(), default=0) < 3:  # several attempts
                        await asyncio.sleep(0.01)
                assert set(server.reported) == {"shop"}
                assert operator.trouble() is None
                async with asyncio.timeout(60):
                    while not operator.readiness()[0]:
                        await asyncio.sleep(0.01)
                text = operator.readiness()[1]
                assert text.startswith("ready in 1 of 2 namespaces")
                for kind in ("configmaps", "outboxrelays.outbox.dev", "outboxreplays.outbox.dev"):
                    assert f"namespace gone: {kind}: no rights in gone" in text
                server.closed.clear()
                await until_reported("shop", "gone")
            finally:
                await operator.stop()

    with caplog.at_level(logging.WARNING):
        asyncio.run(test())
    complaints = [r.getMessage() for r in caplog.records if "no rights in gone" in r.getMessage()]
    assert len(complaints) == len(set(complaints))  # each kind once, and not at each attempt
    assert any("cannot watch configmaps" in text for text in complaints)


def test_kopf_never_gives_up_and_loses_no_time() -> None:
    first, again = (list(itertools.islice(Patience(), 1000)) for _ in range(2))
    assert first == again
    assert max(first) <= 20

"""Whole looks at a replay: one whose driver never answers, and one that a GitOps tool keeps."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest
from aiohttp import web

from fixtures.answering import answering
from fixtures.made_resources import relay_body, replay_body
from outbox_core.contract.replay import ReplayReport
from outbox_operator.kube.kinds import PODS
from outbox_operator.kube.reports import Reporters
from outbox_operator.kube.secrets import Secrets
from outbox_operator.kube.watch.informer import Informers
from outbox_operator.kube.watch.watches import Watches
from outbox_operator.kube.writer import Writer
from outbox_operator.relay.spec.resource import OutboxRelay
from outbox_operator.replay import gather
from outbox_operator.replay.children.pod import ATTEMPT, UID
from outbox_operator.replay.gather import ReplayGatherer
from outbox_operator.replay.reconcile import ReplayReconciler
from outbox_operator.settings import OperatorSettings
from outbox_operator.shared.silence import SILENT_AFTER

SECRET = {"metadata": {"uid": "1", "resourceVersion": "1"}}
KEY = ("OutboxReplay", "shop", "again")
UID_OF_IT = replay_body()["metadata"]["uid"]


class Server:
    """It has a relay that nobody has ever read, and what the operator makes."""

    def __init__(self, **metadata: Any) -> None:
        self.replay = replay_body(executor={"instances": 0})
        self.replay["metadata"] |= metadata
        self.relay = relay_body() | {"status": {"readyReplicas": 1}}
        self.pods: list[dict[str, Any]] = []
        self.made: dict[str, Any] = {}
        self.events: list[str] = []
        self.statuses = 0
        self.version = 10

    async def answer(self, request: web.Request) -> web.StreamResponse:
        name = request.path.rpartition("/")[2]
        if "watch" in request.query:
            await asyncio.sleep(60)
        if "labelSelector" in request.query:
            metadata = {"resourceVersion": str(self.version)}
            return web.json_response({"apiVersion": "v1", "metadata": metadata, "items": self.pods})
        if request.method == "GET":
            found = {"orders": self.relay, "again": self.replay, "orders-db": SECRET}
            found |= self.made
            there = name in found
            body = found.get(name, {"reason": "NotFound"})
            return web.json_response(body, status=200 if there else 404)
        body = await request.json()
        self.version += 1
        body.setdefault("metadata", {})["resourceVersion"] = str(self.version)
        if name == "events":
            self.events.append(body["reason"])
        elif name == "status":
            self.statuses += 1
            self.replay |= {"status": body["status"]}
            self.replay["metadata"]["resourceVersion"] = str(self.version)
        elif request.method == "POST":
            stamp = datetime.now(UTC).isoformat()
            self.made[body["metadata"]["name"]] = body | {"status": {}}
            body["metadata"] |= {"creationTimestamp": stamp}
        return web.json_response(body)

    def have_driver(self, **state: Any) -> None:
        """Its pod, on an address where nobody answers."""
        self.version += 1
        labels = {"app.kubernetes.io/component": "driver", UID: UID_OF_IT, ATTEMPT: "1"}
        self.pods = [
            {
                "metadata": {
                    "name": "again-1-x",
                    "namespace": "shop",
                    "resourceVersion": str(self.version),
                    "labels": labels,
                    "annotations": {"outbox.dev/resource": "again"},
                },
                "status": {
                    "phase": "Running",
                    "podIP": "127.0.0.1",
                    "containerStatuses": [{"name": "spark-kubernetes-driver", "state": state}],
                },
            }
        ]


@asynccontextmanager
async def looking(server: Server, clock: Any) -> AsyncIterator[Any]:
    async with answering(server.answer) as api:
        reporters = Reporters(clock)
        writer = Writer(api)

        async def look() -> dict[str, Any]:
            informers = Informers(api, (PODS,), (), lambda _: None, Watches(lambda _: None))
            tasks = informers.start()
            try:
                await informers.synced(None)
                gatherer = ReplayGatherer(
                    *(api, informers, reporters, Secrets(api, 60)), OutboxRelay.parse
                )
                again = ReplayReconciler(OperatorSettings(), gatherer, writer)
                await again.reconcile(KEY, server.replay)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
            status: dict[str, Any] = server.replay.get("status") or {}
            return status

        yield look


def test_a_replay_whose_pods_can_never_be_read_runs_and_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gather, "PORT", 1)  # nobody listens there
    server, now = Server(), 1000.0

    async def test() -> None:
        nonlocal now
        async with looking(server, lambda: now) as look:
            assert (await look())["attempts"] == 1
            server.have_driver(running={})
            status = await look()
            assert status["phase"] == "Planning"
            now += SILENT_AFTER.total_seconds()
            status = await look()
            assert status["phase"] == "Running"
            assert "excludeInboundPorts" in status["message"]
            done = {"stage": "Succeeded", "matched": 7, "replayed": 7, "message": "7 of 7"}
            said = ReplayReport.model_validate(
                {"version": "1", "id": "x", "observed_at": datetime.now(UTC)} | done
            )
            words = said.model_dump_json(by_alias=True)
            server.have_driver(terminated={"exitCode": 0, "reason": "Completed", "message": words})
            status = await look()
            assert (status["phase"], status["replayed"]) == ("Succeeded", 7)

    asyncio.run(test())
    assert server.events == [
        *("AttemptStarted", "Planning", "Running", "NoReport", "Succeeded"),
    ]


def test_a_finished_replay_that_argo_cd_keeps_outlives_its_time_and_shows_it_once() -> None:
    server = Server(annotations={"argocd.argoproj.io/tracking-id": "shop:outbox.dev/..."})
    long_ago = (datetime.now(UTC) - timedelta(days=1)).isoformat(timespec="seconds")
    server.replay["spec"] |= {"ttlSecondsAfterFinished": 60}
    server.replay["status"] = {
        "phase": "Succeeded",
        "message": "7 of 7",
        "completionTime": long_ago.replace("+00:00", "Z"),
        "conditions": [],
    }

    async def test() -> None:
        async with looking(server, lambda: 0.0) as look:
            for _ in range(3):
                status = await look()
                assert status["message"].startswith("7 of 7; ")
                assert "ttlSecondsAfterFinished" in status["message"]

    asyncio.run(test())
    assert (server.events, server.statuses) == (["TtlIgnored"], 1)


def test_one_that_nobody_keeps_is_deleted_when_its_time_is_over() -> None:
    server = Server()
    server.replay["spec"] |= {"ttlSecondsAfterFinished": 0}
    server.replay["status"] = {"phase": "Succeeded", "completionTime": "2026-03-01T12:00:00Z"}
    deleted: list[str] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        if request.method == "DELETE":
            deleted.append(request.path)
        return await server.answer(request)

    async def test() -> None:
        async with answering(answer) as api:
            writer = Writer(api)
            nothing = Informers(api, (), (), lambda _: None, Watches(lambda _: None))
            nobody = cast("Reporters", None)  # who is finished is not asked any more
            gatherer = ReplayGatherer(*(api, nothing, nobody, Secrets(api, 60)), OutboxRelay.parse)
            again = ReplayReconciler(OperatorSettings(), gatherer, writer)
            await again.reconcile(KEY, server.replay)

    asyncio.run(test())
    assert deleted == ["/apis/outbox.dev/v1alpha1/namespaces/shop/outboxreplays/again"]

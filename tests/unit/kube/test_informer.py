"""Informers and the door to the API server, with a server that says what a test wants."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from kubernetes.aio import client

from fixtures.answering import Handler, answering
from outbox_operator.kube.api import Api, ApiError, Unreachable
from outbox_operator.kube.kinds import CHILDREN, CUSTOM_API, PODS, SPARK_APPLICATIONS, ObjectKind
from outbox_operator.kube.refusals import differs
from outbox_operator.kube.watch.informer import Informer, Informers, Owner
from outbox_operator.kube.watch.watches import Watches
from outbox_operator.program import Operator
from outbox_operator.settings import OperatorSettings

CONFIG_MAPS = CHILDREN["ConfigMap"]


def config_map(name: str, version: int, owner: str = "orders") -> dict[str, Any]:
    return {
        "metadata": {
            "namespace": "shop",
            "name": name,
            "resourceVersion": str(version),
            "annotations": {"outbox.dev/resource": owner},
        }
    }


def listed(*items: dict[str, Any], version: int = 1) -> web.Response:
    body = {
        "apiVersion": "v1",
        "kind": "ConfigMapList",
        "metadata": {"resourceVersion": str(version)},
        "items": list(items),
    }
    return web.json_response(body)


async def stream(request: web.Request, *events: dict[str, Any]) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    for event in events:
        await response.write(json.dumps(event).encode() + b"\n")
    await asyncio.sleep(0.05)
    return response


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not true():
            await asyncio.sleep(0.01)


@asynccontextmanager
async def informed(
    handler: Handler, kind: ObjectKind = CONFIG_MAPS
) -> AsyncIterator[tuple[Informer, list[Owner]]]:
    changed: list[Owner] = []
    async with answering(handler) as api:
        informer = Informer(api, kind, "shop", changed.append, Watches(lambda _: None))
        task = asyncio.create_task(informer.run())
        try:
            yield informer, changed
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def names(informer: Informer) -> list[str]:
    return [body["metadata"]["name"] for body in informer.of(("shop", "orders"))]


def test_it_lists_and_then_follows() -> None:
    async def server(request: web.Request) -> web.StreamResponse:
        assert "outbox-operator" in request.query["labelSelector"]
        if "watch" not in request.query:
            return listed(config_map("a", 1), config_map("other", 1, owner="bills"))
        if request.query["resourceVersion"] != "1":
            await asyncio.sleep(5)
        return await stream(
            request,
            {"type": "ADDED", "object": config_map("b", 2)},
            {"type": "DELETED", "object": config_map("a", 3)},
            {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "9"}}},
        )

    async def test() -> None:
        async with informed(server) as (informer, changed):
            await until(lambda: names(informer) == ["b"])
            assert set(changed) == {("shop", "orders"), ("shop", "bills")}
            assert informer.synced.is_set()

    asyncio.run(test())


def test_the_last_state_of_what_was_deleted_is_kept_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The kubelet writes how a pod ended, and deletes it: nobody looks in between."""

    async def server(request: web.Request) -> web.StreamResponse:
        if "watch" not in request.query:
            return listed(config_map("a", 1))
        if request.query["resourceVersion"] != "1":
            await asyncio.sleep(5)
        return await stream(
            request,
            {"type": "MODIFIED", "object": config_map("a", 2)},
            {"type": "DELETED", "object": config_map("a", 3)},
        )

    async def test() -> None:
        async with informed(server) as (informer, _):
            await until(lambda: informer.served and not names(informer))
            (last,) = informer.deleted(("shop", "orders"))
            assert last["metadata"]["resourceVersion"] == "3"
            assert informer.deleted(("shop", "bills")) == []
            monkeypatch.setattr("outbox_operator.kube.watch.informer.DELETED_SECONDS", 0.0)
            assert informer.deleted(("shop", "orders")) == []

    asyncio.run(test())


def test_a_watch_that_has_expired_is_begun_anew_and_what_went_meanwhile_is_gone() -> None:
    lists = 0

    async def server(request: web.Request) -> web.StreamResponse:
        nonlocal lists
        if "watch" not in request.query:
            lists += 1
            return listed(config_map("a", 1)) if lists == 1 else listed(config_map("b", 5))
        if lists > 1:
            await asyncio.sleep(5)
        gone = {"code": 410, "reason": "Expired", "message": "too old resource version"}
        return await stream(request, {"type": "ERROR", "object": gone})

    async def test() -> None:
        async with informed(server) as (informer, _):
            await until(lambda: names(informer) == ["b"])

    asyncio.run(test())


def test_a_server_that_fails_for_a_while_is_asked_again() -> None:
    asked = 0

    async def server(request: web.Request) -> web.StreamResponse:
        nonlocal asked
        asked += 1
        if asked < 3:
            return web.json_response({"message": "starting"}, status=503)
        if "watch" in request.query:
            await asyncio.sleep(5)
        return listed(config_map("a", 1))

    async def test() -> None:
        async with informed(server) as (informer, _):
            await until(lambda: names(informer) == ["a"])

    asyncio.run(test())


def test_what_nobody_expected_does_not_end_a_watch(caplog: pytest.LogCaptureFixture) -> None:
    lists = 0

    async def server(request: web.Request) -> web.StreamResponse:
        nonlocal lists
        if "watch" not in request.query:
            lists += 1
            if lists == 1:
                return web.Response(text="<html>a proxy that says something</html>")
            return listed(config_map("a", lists))
        if lists > 2:
            await asyncio.sleep(5)
        return web.Response(text="{")

    async def test() -> None:
        async with informed(server) as (informer, _):
            await until(lambda: lists == 3 and names(informer) == ["a"])

    asyncio.run(test())
    told = [r for r in caplog.records if getattr(r, "event", "") == "defect"]
    assert len(told) == 2


def test_what_was_listed_is_compared_as_what_was_watched() -> None:
    async def server(request: web.Request) -> web.StreamResponse:
        if "watch" in request.query:
            await asyncio.sleep(5)
        return listed(config_map("a", 1))

    async def test() -> None:
        async with informed(server) as (informer, _):
            await until(informer.synced.is_set)
            (body,) = informer.of(("shop", "orders"))
            wanted = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}}
            assert not differs(wanted, body)

    asyncio.run(test())


@pytest.mark.parametrize("status", [404, 403])
def test_a_kind_of_another_operator_may_be_missing_and_come_and_go(
    monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    monkeypatch.setattr("outbox_operator.kube.watch.informer.UNKNOWN_KIND_SECONDS", 0.01)
    known = False

    async def server(request: web.Request) -> web.StreamResponse:
        if not known:
            return web.json_response({"message": "no such kind"}, status=status)
        if "watch" in request.query:
            gone = {"code": 410, "reason": "Expired", "message": "too old"}
            return await stream(request, {"type": "ERROR", "object": gone})
        return listed(config_map("a", 1))

    async def test() -> None:
        nonlocal known
        async with informed(server, SPARK_APPLICATIONS) as (informer, _):
            await until(informer.synced.is_set)  # nobody waits for it
            assert not informer.served
            known = True
            await until(lambda: informer.served and names(informer) == ["a"])
            known = False
            await until(lambda: not informer.served and names(informer) == [])

    asyncio.run(test())


def test_a_kind_that_somebody_has_seen_is_not_waited_for() -> None:
    known = False

    async def server(request: web.Request) -> web.StreamResponse:
        if not known:
            return web.Response(text="404 page not found", status=404)
        if "watch" in request.query:
            await asyncio.sleep(5)
        return listed(config_map("a", 1))

    async def test() -> None:
        nonlocal known
        async with informed(server, SPARK_APPLICATIONS) as (informer, _):
            await until(informer.synced.is_set)
            known = True
            informer.known.set()
            await until(lambda: informer.served)  # long before it would have asked again

    asyncio.run(test())


def test_any_number_of_watches_leaves_room_for_other_requests() -> None:
    """Of twelve named namespaces there are more than a hundred and thirty."""
    many, open_ = 132, 0

    async def server(request: web.Request) -> web.StreamResponse:
        nonlocal open_
        if "watch" in request.query:
            open_ += 1
            await asyncio.sleep(5)
        return web.json_response({})

    async def follow(api: Api) -> None:
        async for _ in api.watch("/watched", {}):
            pass

    async def test() -> None:
        async with answering(server) as api:
            watches = [asyncio.create_task(follow(api)) for _ in range(many)]
            try:
                await until(lambda: open_ == many)
                async with asyncio.timeout(5):
                    assert await api.get("/anything") == {}
            finally:
                for watch in watches:
                    watch.cancel()
                await asyncio.gather(*watches, return_exceptions=True)

    asyncio.run(test())


def test_a_refusal_carries_what_the_server_said() -> None:
    async def server(request: web.Request) -> web.StreamResponse:
        details = {"causes": [{"reason": "NamespaceTerminating"}]}
        body = {"reason": "Forbidden", "message": "it is being deleted", "details": details}
        return web.json_response(body, status=403)

    async def test() -> None:
        async with answering(server) as api:
            with pytest.raises(ApiError, match="it is being deleted") as caught:
                await api.get("/anything")
        assert caught.value.status == 403
        assert caught.value.causes == {"NamespaceTerminating"}

    asyncio.run(test())


def test_a_server_that_is_not_there_is_unreachable() -> None:
    async def test() -> None:
        settings = client.Configuration()
        settings.host = "http://127.0.0.1:1"
        api = Api(client.ApiClient(settings))
        with pytest.raises(Unreachable):
            await api.get("/anything")
        await api.close()

    asyncio.run(test())


def test_the_operator_waits_until_its_kinds_are_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = 0

    async def server(request: web.Request) -> web.StreamResponse:
        nonlocal asked
        asked += 1
        if asked == 1:
            return web.json_response({"reason": "NotFound"}, status=404)
        kinds = ["outboxrelays"] if asked == 2 else ["outboxrelays", "outboxreplays"]
        assert request.path == CUSTOM_API
        return web.json_response({"resources": [{"name": name} for name in kinds]})

    async def test() -> None:
        monkeypatch.setattr("outbox_operator.program.KIND_POLL_SECONDS", 0.01)
        async with answering(server) as api:
            await Operator(OperatorSettings())._wait_for_kinds(api)

    asyncio.run(test())
    assert asked == 3


def test_the_version_of_an_owners_objects_changes_with_each_and_never_comes_back() -> None:
    async def quiet(request: web.Request) -> web.StreamResponse:
        return listed()

    async def test() -> None:
        async with answering(quiet) as api:
            watches = Watches(lambda _: None)
            places = ("shop", "other")
            informers = Informers(api, (CONFIG_MAPS, PODS), places, lambda _: None, watches)
            here = next(i for i in informers._all if (i.kind, i.place) == (CONFIG_MAPS, "shop"))
            seen = [informers.version(("shop", "orders"))]

            def changed() -> bool:
                now = informers.version(("shop", "orders"))
                is_new = now not in seen
                seen.append(now)
                return is_new

            here._note(config_map("a", 1))
            assert changed()
            here._note(config_map("a", 2))
            assert changed()
            here._note(config_map("a", 2))  # the same again, as a list brings it
            assert informers.version(("shop", "orders")) == seen[-1]
            here._note(config_map("b", 3, owner="payments"))
            assert informers.version(("shop", "orders")) == seen[-1]
            here._note(config_map("a", 4, owner="payments"))  # it changed hands
            assert informers.version(("shop", "orders")) == seen[0]  # it has none, as before
            here._note(config_map("a", 5))
            assert changed()
            here._forget(("shop", "a"))
            here._note(config_map("a", 6))
            assert changed()
            assert informers.of(PODS.name, ("elsewhere", "orders")) == []

    asyncio.run(test())

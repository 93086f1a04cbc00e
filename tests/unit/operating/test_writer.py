"""What is made once: an attempt is there, is refused, or is somebody else's; never changed."""

import asyncio
from typing import Any

import pytest
from aiohttp import web

from fixtures.answering import answering
from fixtures.made_resources import outbox_replay
from outbox_operator.cluster.api import ApiError
from outbox_operator.cluster.client import Writer
from outbox_operator.cluster.kinds import REPLAYS
from outbox_operator.seen import Refusal

REPLAY = outbox_replay()
JOB: dict[str, Any] = {"kind": "Job", "metadata": {"name": "again-1"}}
ASKED = ("POST", "/apis/batch/v1/namespaces/shop/jobs")
MINE = [{"uid": REPLAY.metadata.uid}]


def created(
    status: int, message: str = "", other: dict[str, Any] | None = None
) -> tuple[Refusal | None, list[tuple[str, str]]]:
    """The server answers the creation so, and has that object under the name."""
    asked: list[tuple[str, str]] = []

    async def server(request: web.Request) -> web.StreamResponse:
        asked.append((request.method, request.path))
        if request.method == "POST":
            return web.json_response({"message": message}, status=status)
        return web.json_response(other or {}, status=200 if other else 404)

    async def test() -> Refusal | None:
        async with answering(server) as api:
            return await Writer(api).create(REPLAY, JOB)

    return asyncio.run(test()), asked


def test_it_is_made() -> None:
    assert created(201) == (None, [ASKED])


def test_one_that_is_there_already_is_left_as_it_is() -> None:
    refusal, asked = created(409, other={"metadata": {"ownerReferences": MINE}})
    assert refusal is None
    assert {method for method, _ in asked} == {"POST", "GET"}


def test_one_that_is_somebody_elses_is_not_taken_for_ours() -> None:
    refusal, _ = created(409, other={"metadata": {"name": "again-1"}})
    assert refusal is not None
    assert refusal.taken


def test_one_of_an_older_replay_of_that_name_is_waited_for() -> None:
    metadata = {"ownerReferences": [{"uid": "old"}], "deletionTimestamp": "2026-03-01T12:00:00Z"}
    refusal, _ = created(409, other={"metadata": metadata})
    assert refusal is not None
    assert not refusal.taken
    assert "older one" in refusal.message


def test_what_the_server_refuses_is_told() -> None:
    refusal, _ = created(403, "exceeded quota: jobs")
    assert refusal == Refusal("Job", "again-1", "exceeded quota: jobs")


def test_a_server_that_is_not_well_is_asked_again() -> None:
    with pytest.raises(ApiError):
        created(503, "starting")


def test_a_resource_whose_time_is_over_is_deleted_and_none_that_has_its_name_since() -> None:
    asked: list[Any] = []

    async def server(request: web.Request) -> web.StreamResponse:
        asked.append((request.method, request.path, (await request.json())["preconditions"]))
        return web.json_response({})

    async def test() -> None:
        async with answering(server) as api:
            await Writer(api).expire(REPLAYS, REPLAY)

    asyncio.run(test())
    path = "/apis/outbox.dev/v1alpha1/namespaces/shop/outboxreplays/again"
    assert asked == [("DELETE", path, {"uid": REPLAY.metadata.uid})]

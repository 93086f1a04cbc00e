"""
What is applied: again where something is wanted no more, and not again for nothing. What is made
once: an attempt is there, is refused, or is somebody else's; never changed.
"""

import asyncio
from typing import Any

import pytest
from aiohttp import web

from fixtures.answering import answering
from fixtures.made_resources import outbox_relay, outbox_replay
from fixtures.made_seen import seen
from outbox_operator.kube.api import ApiError
from outbox_operator.kube.writer import Writer
from outbox_operator.relay.decide.children import decide_children
from outbox_operator.relay.seen import RelaySeen
from outbox_operator.relay.spec.resource import OutboxRelay
from outbox_operator.settings import OperatorSettings
from outbox_operator.shared.marks import APPLIED
from outbox_operator.shared.seen import Refusal

REPLAY = outbox_replay()
JOB: dict[str, Any] = {"kind": "Job", "metadata": {"name": "again-1"}}
ASKED = ("POST", "/apis/batch/v1/namespaces/shop/jobs")
STORE = {"dsnSecretRef": {"name": "orders-db"}}
UNMANAGED = {"manageSchema": False}
MINE = [{"uid": REPLAY.metadata.uid}]


class Stored:
    """A server that keeps children as they were applied, and counts; `spelling` in its own way."""

    def __init__(self, *, spelling: bool = False) -> None:
        self.spelling = spelling
        self.children: dict[tuple[str, str], dict[str, Any]] = {}
        self.writes = 0

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if request.method == "GET":
            return web.json_response({"reason": "NotFound"}, status=404)
        self.writes += 1
        body = await request.json()
        body["metadata"] |= {"resourceVersion": str(self.writes), "uid": body["metadata"]["name"]}
        if self.spelling and body["kind"] == "Deployment":
            body["spec"].pop("revisionHistoryLimit")  # as if it had another way to say so
        self.children[body["kind"], body["metadata"]["name"]] = body
        return web.json_response(body)

    def touched(self) -> None:
        """Somebody wrote into them what is not ours, such as a status."""
        for body in self.children.values():
            body["metadata"]["resourceVersion"] += "0"

    @property
    def deployment(self) -> dict[str, Any]:
        return self.children["Deployment", "orders-relay"]


async def apply(writer: Writer, server: Stored, relay: OutboxRelay) -> int:
    """How often it wrote."""
    before, around = server.writes, seen()
    wanted = decide_children(relay, around, OperatorSettings(), 1).wanted
    await writer.apply(relay, wanted, RelaySeen(children=dict(server.children)))
    return server.writes - before


@pytest.mark.parametrize(
    ("had", "has"),
    [
        ({"pod": {"nodeSelector": {"disk": "fast"}}}, {}),
        ({"pod": {"tolerations": [{"operator": "Exists"}]}}, {}),
        ({"pod": {"labels": {"team": "shop"}}}, {}),
        (
            {"pod": {"env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]}},
            {"pod": {"env": [{"name": "A", "value": "1"}]}},
        ),
        (
            {"pod": {"resources": {"limits": {"cpu": "1", "memory": "1Gi"}}}},
            {"pod": {"resources": {"limits": {"memory": "1Gi"}}}},
        ),
        ({"store": {"postgresql": STORE}}, {"store": {"postgresql": STORE | UNMANAGED}}),
    ],
)
def test_what_is_wanted_no_more_is_taken_away(had: dict[str, Any], has: dict[str, Any]) -> None:
    server = Stored()

    async def test() -> None:
        async with answering(server.answer) as api:
            assert await apply(Writer(api), server, outbox_relay(**had)) == 6
            after = Writer(api)  # also where the operator was restarted meanwhile
            assert await apply(after, server, outbox_relay(**has)) > 0

    asyncio.run(test())
    wanted = decide_children(outbox_relay(**has), seen(), OperatorSettings(), 1).wanted
    (deployment,) = [c for c in wanted if c["kind"] == "Deployment"]
    assert server.deployment["spec"]["template"] == deployment["spec"]["template"]


def test_the_digest_is_of_the_child_and_not_of_its_pods() -> None:
    server = Stored()

    async def test() -> None:
        async with answering(server.answer) as api:
            await apply(Writer(api), server, outbox_relay())

    asyncio.run(test())
    assert all(len(c["metadata"]["annotations"][APPLIED]) == 16 for c in server.children.values())
    assert APPLIED not in server.deployment["spec"]["template"]["metadata"]["annotations"]


def test_what_is_as_it_should_be_is_not_written_again() -> None:
    server = Stored(spelling=True)

    async def test() -> None:
        async with answering(server.answer) as api:
            writer = Writer(api)
            assert await apply(writer, server, outbox_relay()) == 6
            assert await apply(writer, server, outbox_relay()) == 0  # another spelling is no drift
            server.deployment["spec"]["revisionHistoryLimit"] = 3
            server.touched()
            assert await apply(writer, server, outbox_relay()) == 0
            assert await apply(Writer(api), server, outbox_relay()) == 0

    asyncio.run(test())


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
    assert (refusal.taken, refusal.temporary) == (False, True)


def test_what_the_server_refuses_is_told() -> None:
    refusal, _ = created(403, "exceeded quota: jobs")
    assert refusal == Refusal("Job", "again-1", "exceeded quota: jobs")


def test_a_server_that_is_not_well_is_asked_again() -> None:
    with pytest.raises(ApiError):
        created(503, "starting")


UNKNOWN = "failed to create typed patch object (shop/x; apps/v1, Kind=Deployment): .spec.x: unknown"


DENIED = 'admission webhook "policy" denied the request: its own database is away'


@pytest.mark.parametrize("said", [UNKNOWN, 'failed calling webhook "policy": timeout', DENIED])
def test_a_fault_of_the_child_that_the_server_calls_its_own_is_told(said: str) -> None:
    refusal, _ = created(500, said)
    assert refusal == Refusal("Job", "again-1", said)


@pytest.mark.parametrize(("status", "said"), [(500, "etcdserver: leader changed"), (503, UNKNOWN)])
def test_a_fault_of_the_server_is_not_the_childs(status: int, said: str) -> None:
    with pytest.raises(ApiError):
        created(status, said)


def test_what_the_server_says_at_great_length_is_shortened_to_a_line() -> None:
    refusal, _ = created(422, "errors:\n  .spec: " + "x" * 5000)
    assert refusal is not None
    assert refusal.message.startswith("errors: .spec: xxx")
    assert len(refusal.message) == 1000


def test_a_resource_whose_time_is_over_is_deleted_and_none_that_has_its_name_since() -> None:
    asked: list[Any] = []

    async def server(request: web.Request) -> web.StreamResponse:
        asked.append((request.method, request.path, (await request.json())["preconditions"]))
        return web.json_response({})

    async def test() -> None:
        async with answering(server) as api:
            await Writer(api).expire(REPLAY)

    asyncio.run(test())
    path = "/apis/outbox.dev/v1alpha1/namespaces/shop/outboxreplays/again"
    assert asked == [("DELETE", path, {"uid": REPLAY.metadata.uid})]

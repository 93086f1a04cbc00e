"""What is gathered of a replay, with an API server that says what a test wants."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from aiohttp import web

from fixtures.answering import answering
from fixtures.made_replays import after, started
from fixtures.made_resources import outbox_replay, relay_body
from outbox_operator.kube.kinds import SPARK_APPLICATIONS
from outbox_operator.kube.reports import Reporters
from outbox_operator.kube.secrets import Secrets
from outbox_operator.kube.watch.informer import Informers
from outbox_operator.kube.watch.watches import Watches
from outbox_operator.relay.spec.resource import OutboxRelay
from outbox_operator.replay.gather import ReplayGatherer, staying
from outbox_operator.replay.seen import ReplaySeen
from outbox_operator.replay.spec.resource import OutboxReplay
from outbox_operator.shared.seen import Secret

KNOWN = {SPARK_APPLICATIONS.api: {"resources": [{"name": "sparkapplications"}]}}
SHOP = "/apis/outbox.dev/v1alpha1/namespaces/shop"
SECRET = {"metadata": {"uid": "1", "resourceVersion": "2"}}


def gathered(replay: OutboxReplay, has: Mapping[str, Any]) -> ReplaySeen:
    """`has`: what the server has, by path."""

    async def server(request: web.Request) -> web.Response:
        if request.path in has:
            return web.json_response(has[request.path])
        if "sparkoperator" in request.path:
            return web.Response(text="404 page not found", status=404)
        return web.json_response({"reason": "NotFound"}, status=404)

    async def test() -> ReplaySeen:
        async with answering(server) as api:
            informers = Informers(api, (), (), lambda _: None, Watches(lambda _: None))
            around = (api, informers, Reporters(), Secrets(api, 60))
            return await ReplayGatherer(*around, OutboxRelay.parse).replay(replay)

    return asyncio.run(test())


@pytest.mark.parametrize(
    ("spec", "has", "expected"),
    [
        ({}, KNOWN, True),
        ({}, {}, False),
        ({}, {SPARK_APPLICATIONS.api: {"resources": [{"name": "sparkconnects"}]}}, False),
        ({"engine": "SparkApplication", "dryRun": True}, KNOWN, True),
    ],
)
def test_a_spark_operator_that_was_just_installed_is_seen(
    spec: dict[str, Any], has: dict[str, Any], expected: bool
) -> None:
    assert gathered(outbox_replay(**spec), has).spark_operator is expected


def test_its_relay_is_read_with_the_secret_that_it_names() -> None:
    has = {f"{SHOP}/outboxrelays/orders": relay_body()}
    seen = gathered(outbox_replay(), has)
    assert seen.relay is not None
    assert seen.secrets == [Secret("orders-db", None)]
    has["/api/v1/namespaces/shop/secrets/orders-db"] = SECRET
    assert gathered(outbox_replay(), has).secrets == [Secret("orders-db", "1/2")]


def test_a_relay_that_cannot_be_understood_is_not_taken_for_none() -> None:
    broken = relay_body(lease="soon")
    seen = gathered(outbox_replay(), {f"{SHOP}/outboxrelays/orders": broken})
    assert (seen.relay, seen.relay_invalid) == (None, True)
    assert not gathered(outbox_replay(), {}).relay_invalid


def test_a_driver_that_is_being_deleted_is_not_asked() -> None:
    """Its termination message has the figures, and is soon gone with the pod."""
    stays = {"metadata": {"name": "again-2-x"}}
    leaves = {"metadata": {"name": "again-1-x", "deletionTimestamp": "2026-03-01T12:00:00Z"}}
    assert staying([leaves, stays]) == [stays]


def test_an_attempt_that_the_watch_does_not_show_yet_is_read() -> None:
    replay = after(started())
    job = {"metadata": {"name": "again-1", "ownerReferences": [{"uid": replay.metadata.uid}]}}
    path = "/apis/batch/v1/namespaces/shop/jobs/again-1"
    assert gathered(replay, {path: job}).child("Job", "again-1") == job
    anothers = {"metadata": {"name": "again-1"}}
    assert gathered(replay, {path: anothers}).child("Job", "again-1") is None
    on_spark = after(started().model_copy(update={"engine": "SparkApplication"}))
    assert gathered(on_spark, {}).children == {}  # the kind is gone, and it with it

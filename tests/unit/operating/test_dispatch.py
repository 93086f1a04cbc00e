"""One look at a resource, with an API server that says what a test wants."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, ClassVar

import pytest
from aiohttp import web
from prometheus_client import generate_latest

from fixtures.answering import Handler, answering
from fixtures.made_resources import relay_body, replay_body
from fixtures.made_seen import deployment, pod, report, seen
from outbox_operator.dispatch import Dispatcher
from outbox_operator.kinds import RELAY, REPLAY
from outbox_operator.kube.api import ApiError
from outbox_operator.kube.reports import Reporters
from outbox_operator.kube.secrets import Secrets
from outbox_operator.kube.watch.informer import Informers
from outbox_operator.kube.watch.watches import Watches
from outbox_operator.kube.writer import Writer
from outbox_operator.metrics import Metrics
from outbox_operator.reconciling import KindReconciler
from outbox_operator.relay.gather import Answers, RelayGatherer
from outbox_operator.relay.reconcile.reconciler import RelayReconciler
from outbox_operator.relay.seen import RelaySeen
from outbox_operator.relay.spec.resource import OutboxRelay
from outbox_operator.replay.gather import ReplayGatherer
from outbox_operator.replay.reconcile import ReplayReconciler
from outbox_operator.settings import OperatorSettings
from outbox_operator.shared.seen import Secret

DEPLOYMENT = deployment()
WRITTEN = {"resourceVersion": "2", "generation": 2}
"""Of a Deployment whose controller has only seen the first."""
NOT_FOUND = {"reason": "NotFound", "message": "there is none"}


class Server:
    """It has one relay, or none, and notes what is written."""

    def __init__(self, relay: dict[str, Any] | None) -> None:
        self.relay = relay
        self.written: list[str] = []
        self.status: dict[str, Any] = {}

    async def answer(self, request: web.Request) -> web.Response:
        if request.method != "GET":
            self.written.append(request.path)
        if request.path.endswith("/status"):
            self.status = (await request.json())["status"]
        if f"/{RELAY.plural}/" in request.path and self.relay is not None:
            return web.json_response(self.relay)
        if request.method == "PATCH" and "outbox.dev" not in request.path:
            return web.json_response({**DEPLOYMENT, "metadata": WRITTEN})
        return web.json_response(NOT_FOUND, status=404)


@asynccontextmanager
async def reconciling(
    handler: Handler, kind: type[RelayGatherer] = RelayGatherer
) -> AsyncIterator[Dispatcher]:
    async with answering(handler) as api:
        reporters, metrics, settings = Reporters(), Metrics(), OperatorSettings()
        around = (
            api,
            Informers(api, (), (), lambda _: None, Watches(lambda _: None)),
            reporters,
            Secrets(api, 60),
        )
        writer = Writer(api)
        replays = ReplayGatherer(*around, OutboxRelay.parse)
        reconcilers: dict[str, KindReconciler[Any]] = {
            RELAY.name: RelayReconciler(settings, kind(*around), writer),
            REPLAY.name: ReplayReconciler(settings, replays, writer),
        }
        yield Dispatcher(reconcilers, writer, metrics)


class Given(RelayGatherer):
    """It asks nobody."""

    async def ask(self, relay: OutboxRelay, names: Iterable[str]) -> Answers:
        return Answers((), (), {})


class Settled(Given):
    """Of a relay whose pods are as they were asked for, before it was changed."""

    def seen(self, relay: OutboxRelay, answers: Answers) -> RelaySeen:
        before = {**DEPLOYMENT, "metadata": DEPLOYMENT["metadata"] | {"resourceVersion": "1"}}
        return seen(pod(), deployment=before)


def test_a_change_that_was_just_written_is_not_yet_carried_out() -> None:
    server = Server(relay_body())
    key = (RELAY.name, "shop", "orders")

    async def test() -> None:
        async with reconciling(server.answer, Settled) as dispatcher:
            dispatcher.seen(key, relay_body(batchSize=100))
            await dispatcher.reconcile(key)

    asyncio.run(test())
    progressing = {c["type"]: c["status"] for c in server.status["conditions"]}["Progressing"]
    assert progressing == "True"


OWNED = {"ownerReferences": DEPLOYMENT["metadata"]["ownerReferences"]}
LEFT = {
    ("ConfigMap", "orders-relay-old"): {
        "metadata": {"name": "orders-relay-old", "uid": "c", **OWNED}
    },
    ("ServiceAccount", "orders-relay"): {"metadata": {"name": "orders-relay", "uid": "a", **OWNED}},
}


class Replaced(Given):
    """Of a relay that had another config, and an account of its own; no pod needs them any more."""

    def seen(self, relay: OutboxRelay, answers: Answers) -> RelaySeen:
        before = {**DEPLOYMENT, "metadata": {**DEPLOYMENT["metadata"], "resourceVersion": "1"}}
        return seen(pod(), deployment=before, children=LEFT)


class Removing(Server):
    """It notes what is deleted; its Deployments are carried out at once, or not yet."""

    def __init__(self, relay: dict[str, Any], done: bool) -> None:
        super().__init__(relay)
        self.deleted: list[str] = []
        self._done = {"status": {**DEPLOYMENT["status"], "observedGeneration": 2}} if done else {}

    async def answer(self, request: web.Request) -> web.Response:
        if request.method == "DELETE":
            self.deleted.append(request.path.rpartition("/")[2])
            return web.json_response({})
        if request.method == "PATCH" and "/deployments/" in request.path:
            return web.json_response({**DEPLOYMENT, "metadata": WRITTEN, **self._done})
        return await super().answer(request)


@pytest.mark.parametrize(
    ("done", "deleted"), [(False, []), (True, ["orders-relay-old", "orders-relay"])]
)
def test_what_old_pods_need_is_not_removed_by_the_look_that_begins_a_rollout(
    done: bool, deleted: list[str]
) -> None:
    body = relay_body(pod={"serviceAccountName": "mine"})
    server = Removing(body, done)
    looked(body, server, Replaced)
    assert server.deleted == deleted


class Lagging:
    """It makes a version of each write, and its watch shows nothing of that."""

    def __init__(self) -> None:
        self.longest = 0
        """Bytes, of the Events' messages."""
        self.statuses = 0
        self.status: dict[str, Any] = {}
        self.events: list[str] = []

    async def answer(self, request: web.Request) -> web.Response:
        body = await request.json() if request.method in ("POST", "PATCH") else {}
        if request.path.endswith("/events"):
            self.events.append(body["reason"])
            self.longest = max(self.longest, len(body["message"].encode()))
        if request.path.endswith("/status"):
            self.statuses += 1
            self.status = body["status"]
        if request.method != "GET":
            body.setdefault("metadata", {})["resourceVersion"] = str(10 + self.statuses)
            return web.json_response(body)
        return web.json_response(NOT_FOUND, status=404)


class Without(Given):
    """Of a relay whose Secret is missing."""

    def seen(self, relay: OutboxRelay, answers: Answers) -> RelaySeen:
        return seen(secrets=[Secret("orders-db", None)])

    async def confirm(self, relay: OutboxRelay) -> None:
        pass


@pytest.mark.parametrize(
    ("kind", "body", "event"),
    [("OutboxRelay", relay_body(), "SecretMissing"), ("OutboxReplay", replay_body(), None)],
)
def test_while_the_watch_lags_nothing_is_written_or_told_twice(
    monkeypatch: pytest.MonkeyPatch, kind: str, body: dict[str, Any], event: str | None
) -> None:
    # Otherwise it would be damped.
    monkeypatch.setattr("outbox_operator.shared.notices.QUIET_TIME", timedelta())
    server = Lagging()
    key = (kind, "shop", body["metadata"]["name"])

    async def test() -> None:
        async with reconciling(server.answer, Without) as dispatcher:
            dispatcher.seen(key, body)
            for _ in range(3):
                await dispatcher.reconcile(key)
            assert server.statuses == 1
            assert event is None or server.events == [event]
            # What somebody else made of it since is taken as it is.
            newer = {**body, "metadata": {**body["metadata"], "resourceVersion": "20"}}
            dispatcher.seen(key, newer)
            await dispatcher.reconcile(key)
            assert server.statuses == 2

    asyncio.run(test())


RELAY_REFUSED = relay_body(lease="1s")
REPLAY_REFUSED = replay_body(maxEvents=0)


def refused(body: dict[str, Any]) -> tuple[list[str], dict[str, Any], str]:
    """Three looks at a spec that only we refuse: the Events, the status, and the metrics."""
    server = Lagging()
    key = (body["kind"], "shop", body["metadata"]["name"])

    async def test() -> str:
        async with reconciling(server.answer, Without) as dispatcher:
            dispatcher.seen(key, body)
            for _ in range(3):
                assert await dispatcher.reconcile(key) is None
            return generate_latest(dispatcher._metrics.registry).decode()

    counted = asyncio.run(test())
    return server.events, server.status, counted


@pytest.mark.parametrize(
    ("body", "judged"),
    [
        (RELAY_REFUSED, 'condition="Degraded",kind="OutboxRelay",status="True"'),
        (REPLAY_REFUSED, 'condition="Accepted",kind="OutboxReplay",status="False"'),
    ],
)
def test_a_spec_that_only_we_refuse_is_told_once_and_counted(
    body: dict[str, Any], judged: str
) -> None:
    events, status, counted = refused(body)
    assert events == ["SpecInvalid"]
    assert {c["reason"] for c in status["conditions"]} == {"SpecInvalid"}
    assert "kubectl" not in status["conditions"][0]["message"]
    assert f"outbox_operator_resources{{{judged}}} 1.0" in counted


def test_one_that_is_being_deleted_says_how_it_can_go() -> None:
    held = {
        "deletionTimestamp": "2026-03-01T12:00:00Z",
        "finalizers": ["outbox.dev/retire", "other/one"],
    }
    going = {**RELAY_REFUSED, "metadata": RELAY_REFUSED["metadata"] | held}
    _, status, _ = refused(going)
    told = status["conditions"][0]["message"]
    assert "kubectl patch outboxrelay -n shop orders" in told
    assert '{"metadata": {"finalizers": ["other/one"]}}' in told


@pytest.mark.parametrize("now", [None, "another"])
def test_nothing_is_made_for_a_relay_that_is_gone_or_is_another_now(now: str | None) -> None:
    remembered = relay_body()
    body = relay_body()
    body["metadata"]["uid"] = now
    server = Server(None if now is None else body)
    key = (RELAY.name, "shop", "orders")

    async def test() -> None:
        async with reconciling(server.answer) as dispatcher:
            dispatcher.seen(key, remembered)
            assert await dispatcher.reconcile(key) is None
            assert server.written == []
            assert await dispatcher.reconcile(key) is None  # it is forgotten

    asyncio.run(test())


def test_what_is_told_of_a_new_one_meanwhile_is_not_forgotten() -> None:
    server = Server(None)
    key = (RELAY.name, "shop", "orders")
    new = relay_body()
    new["metadata"]["uid"] = "new"

    async def test() -> None:
        async with reconciling(server.answer) as dispatcher:
            dispatcher.seen(key, relay_body())
            looking = asyncio.create_task(dispatcher.reconcile(key))
            await asyncio.sleep(0)  # it has begun
            dispatcher.seen(key, new)
            assert await looking is None
            server.relay = new
            assert await dispatcher.reconcile(key) is not None

    asyncio.run(test())
    assert any(path.endswith("/deployments/orders-relay") for path in server.written)


def test_a_server_that_does_not_know_the_kind_says_nothing_about_the_relay() -> None:
    key = (RELAY.name, "shop", "orders")

    async def no_such_page(_: web.Request) -> web.Response:
        return web.Response(text="404 page not found", status=404)

    async def test() -> None:
        async with reconciling(no_such_page) as dispatcher:
            dispatcher.seen(key, relay_body())
            for _ in range(2):  # it is tried again
                with pytest.raises(ApiError, match="page not found"):
                    await dispatcher.reconcile(key)

    asyncio.run(test())


def test_a_replay_that_is_gone_is_not_tried_again() -> None:
    server = Server(None)
    key = ("OutboxReplay", "shop", "again")

    async def test() -> None:
        async with reconciling(server.answer) as dispatcher:
            dispatcher.seen(key, replay_body())
            assert await dispatcher.reconcile(key) is None
            assert await dispatcher.reconcile(key) is None

    asyncio.run(test())
    assert len([path for path in server.written if path.endswith("/status")]) == 1


def test_nothing_is_begun_for_a_replay_that_is_gone() -> None:
    """Its relay is there; and it would be begun, as far as anybody has told."""
    relay = relay_body()
    relay["status"] = {"observedAt": "2026-03-01T12:00:00Z"}
    key = ("OutboxReplay", "shop", "again")
    written: list[str] = []

    async def server(request: web.Request) -> web.Response:
        if request.method != "GET":
            written.append(request.path)
        if request.path.endswith("/outboxrelays/orders"):
            return web.json_response(relay)
        if request.path.endswith("/secrets/orders-db"):
            return web.json_response({"metadata": {"uid": "1", "resourceVersion": "1"}})
        return web.json_response(NOT_FOUND, status=404)

    async def test() -> None:
        async with reconciling(server) as dispatcher:
            dispatcher.seen(key, replay_body())
            assert await dispatcher.reconcile(key) is None
            assert not dispatcher.knows(key)

    asyncio.run(test())
    assert written == []


def deleting(body: dict[str, Any], *finalizers: str) -> dict[str, Any]:
    held = {"deletionTimestamp": "2026-03-01T12:00:00Z", "finalizers": list(finalizers)}
    return {**body, "metadata": body["metadata"] | held}


def looked(body: dict[str, Any], server: Server, kind: type[RelayGatherer] = RelayGatherer) -> None:
    key = (RELAY.name, "shop", "orders")

    async def test() -> None:
        async with reconciling(server.answer, kind) as dispatcher:
            dispatcher.seen(key, body)
            await dispatcher.reconcile(key)

    asyncio.run(test())


STATUS = "/apis/outbox.dev/v1alpha1/namespaces/shop/outboxrelays/orders/status"


@pytest.mark.parametrize("finalizer", ["foregroundDeletion", "orphan", "other/one"])
@pytest.mark.parametrize("kind", [RelayGatherer, Settled])
def test_of_a_relay_that_is_kept_nothing_but_the_status_is_written_while_it_goes(
    finalizer: str, kind: type[RelayGatherer]
) -> None:
    body = deleting(relay_body(), finalizer)
    server = Server(body)
    looked(body, server, kind)
    assert server.written == [STATUS]
    ready = next(c for c in server.status["conditions"] if c["type"] == "Ready")
    assert ready["reason"] == "Deleting"
    assert finalizer in ready["message"]


def test_what_the_garbage_collector_removed_is_not_made_again_though_the_watch_lags() -> None:
    server = Server(deleting(relay_body(), "foregroundDeletion"))
    with pytest.raises(ApiError) as caught:
        looked(relay_body(), server)
    assert (caught.value.status, caught.value.reason) == (409, "Conflict")
    assert server.written == []


def test_who_has_just_set_retain_gets_no_job_though_the_watch_lags() -> None:
    held = deleting(relay_body(deletionPolicy="Delete"), "outbox.dev/retire")
    changed = deleting(relay_body(), "outbox.dev/retire")
    changed["metadata"]["generation"] = 2
    server = Server(changed)
    with pytest.raises(ApiError) as caught:
        looked(held, server)
    assert (caught.value.status, caught.value.reason) == (409, "Conflict")
    assert server.written == []


RESOURCE = STATUS.removesuffix("/status")


class Refusing(Server):
    """Somebody has changed the relay since it was seen."""

    async def answer(self, request: web.Request) -> web.Response:
        if request.method == "PATCH" and request.path == RESOURCE:
            return web.json_response({"reason": "Conflict"}, status=409)
        return await super().answer(request)


def accepted(body: dict[str, Any]) -> dict[str, Any]:
    """A relay that had pods."""
    return {**body, "status": {"relayName": "shop/orders"}}


DELETE = relay_body(deletionPolicy="Delete")
DELETE_REFUSED = accepted(relay_body(lease="1s", deletionPolicy="Delete"))


@pytest.mark.parametrize("body", [DELETE, DELETE_REFUSED])
def test_a_relay_that_is_to_be_forgotten_is_held_before_anything_else(body: dict[str, Any]) -> None:
    server = Server(body)
    looked(body, server)
    assert server.written[0] == RESOURCE
    assert server.written[-1] == STATUS
    assert server.status["observedGeneration"] == 1


@pytest.mark.parametrize("body", [DELETE, DELETE_REFUSED])
def test_its_generation_is_not_observed_before_it_is_held(body: dict[str, Any]) -> None:
    server = Refusing(body)
    with pytest.raises(ApiError):
        looked(body, server)
    assert server.written == []


def test_a_spec_that_never_made_pods_is_not_held() -> None:
    body = relay_body(lease="1s", deletionPolicy="Delete")
    server = Server(body)
    looked(body, server)
    assert RESOURCE not in server.written


def heard(
    *given: dict[str, Any], last: dict[str, Any], kind: type[RelayGatherer] = Without
) -> list[str]:
    """The Events of a relay that is looked at in these states, and then gone."""
    server = Lagging()
    key = (RELAY.name, "shop", "orders")

    async def test() -> None:
        async with reconciling(server.answer, kind) as dispatcher:
            for body in given:
                dispatcher.seen(key, body)
                await dispatcher.reconcile(key)
            if dispatcher.deleted(key, last):
                await dispatcher.reconcile(key)

    asyncio.run(test())
    return server.events


def test_one_that_was_deleted_before_it_was_held_says_so() -> None:
    assert heard(last=DELETE) == ["RetirementSkipped"]
    assert heard(last=relay_body()) == []


@pytest.mark.parametrize("finalizer", ["foregroundDeletion", "other/one"])
def test_it_says_so_once_if_somebody_else_holds_it(finalizer: str) -> None:
    going = deleting(DELETE, finalizer)
    assert heard(going, going, last=going) == ["RetirementSkipped"]


class Forgotten(Without):
    """Of a relay whose Job is done."""

    def seen(self, relay: OutboxRelay, answers: Answers) -> RelaySeen:
        owned = {"ownerReferences": [{"uid": relay.metadata.uid}]}
        done = {
            "metadata": owned,
            "status": {"conditions": [{"type": "Complete", "status": "True"}]},
        }
        return seen(children={("Job", "orders-retire"): done})


@pytest.mark.parametrize("others", [[], ["other/one"]])
def test_one_that_was_forgotten_has_nothing_to_say(others: list[str]) -> None:
    held = deleting(DELETE, "outbox.dev/retire", *others)
    after = [deleting(DELETE, *others)] if others else []
    assert heard(held, *after, last=held, kind=Forgotten) == []


class Talkative(Without):
    """Of a relay whose only pod has a lot to say."""

    def seen(self, relay: OutboxRelay, answers: Answers) -> RelaySeen:
        troubled = report(troubles={"broker": "ü" * 40_000})
        return seen(pod(ready=False, report=troubled))


def test_what_a_pod_says_at_great_length_is_cut_to_what_fits() -> None:
    server = Lagging()
    key = (RELAY.name, "shop", "orders")

    async def test() -> None:
        async with reconciling(server.answer, Talkative) as dispatcher:
            dispatcher.seen(key, relay_body())
            await dispatcher.reconcile(key)

    asyncio.run(test())
    assert max(len(c["message"]) for c in server.status["conditions"]) == 32_768
    assert server.events == ["BrokerUnreachable"]
    assert 1020 < server.longest <= 1024


class Picky(Lagging):
    """It does not know a field of the Deployment."""

    said: ClassVar[dict[str, str]] = {
        "message": "failed to create typed patch object (shop/orders-relay): .spec.x: not declared"
    }

    async def answer(self, request: web.Request) -> web.Response:
        if request.method == "PATCH" and "/deployments/" in request.path:
            return web.json_response(self.said, status=500)
        return await super().answer(request)


class Alone(Without):
    """Of a relay that has nothing yet."""

    def seen(self, relay: OutboxRelay, answers: Answers) -> RelaySeen:
        return seen()


def test_a_child_that_the_server_refuses_is_told_once_and_tried_again_ever_later() -> None:
    server = Picky()
    key = (RELAY.name, "shop", "orders")

    async def test() -> list[float | None]:
        async with reconciling(server.answer, Alone) as dispatcher:
            dispatcher.seen(key, relay_body())
            return [await dispatcher.reconcile(key) for _ in range(5)]

    assert asyncio.run(test()) == [10, 20, 40, 60, 60]
    assert server.events == ["PodsNotCreated"]
    assert server.status["observedGeneration"] == 1
    told = {c["type"]: c for c in server.status["conditions"]}
    assert (told["Ready"]["status"], told["Degraded"]["status"]) == ("False", "True")
    assert "the Deployment orders-relay: " in told["Degraded"]["message"]
    assert ".spec.x: not declared" in told["Degraded"]["message"]


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("OutboxRelay", relay_body(fromTheFuture=1)),
        ("OutboxReplay", replay_body(fromTheFuture=1)),
    ],
)
def test_a_field_that_is_not_known_is_told_once_for_each_generation(
    caplog: pytest.LogCaptureFixture, kind: str, body: dict[str, Any]
) -> None:
    """By the operator's life: the one before may have known it."""
    server = Lagging()
    key = (kind, "shop", body["metadata"]["name"])
    edited = {**body, "metadata": {**body["metadata"], "generation": 2}}

    def told() -> int:
        return server.events.count("UnknownField")

    async def test() -> None:
        for life in (1, 2):
            async with reconciling(server.answer, Without) as dispatcher:
                dispatcher.seen(key, body)
                for _ in range(3):
                    await dispatcher.reconcile(key)
                assert told() == 2 * life - 1
                dispatcher.seen(key, edited)
                for _ in range(3):
                    await dispatcher.reconcile(key)
                assert told() == 2 * life

    asyncio.run(test())
    lines = [r.message for r in caplog.records if getattr(r, "event", "") == "ignored"]
    assert len(lines) == 4
    assert "spec.fromTheFuture; upgrade the operator or remove it" in lines[0]
    assert "SpecInvalid" not in str(server.status)
    assert "FromTheFuture" not in str(server.status)


@pytest.mark.parametrize(
    ("phase", "shown"), [(None, {"Stalled": "True", "Reconciling": "False"}), ("Succeeded", {})]
)
def test_a_right_that_a_replay_needs_is_shown_until_the_replay_is_over(
    phase: str | None, shown: dict[str, str]
) -> None:
    body = replay_body(ttlSecondsAfterFinished=0)
    body["status"] = {"phase": phase, "completionTime": "2026-01-01T00:00:00Z"} if phase else {}
    written: dict[str, Any] = {}

    async def refuse(request: web.Request) -> web.Response:
        if request.path.endswith("/status"):
            written.update(await request.json())
            return web.json_response(body)
        return web.json_response({"reason": "Forbidden", "message": "no rights"}, status=403)

    async def test() -> None:
        key = (REPLAY.name, "shop", "again")
        async with reconciling(refuse) as dispatcher:
            dispatcher.seen(key, body)
            with pytest.raises(ApiError, match="no rights"):
                await dispatcher.reconcile(key)

    asyncio.run(test())
    conditions = (written.get("status") or {}).get("conditions", ())
    assert {c["type"]: c["status"] for c in conditions} == shown
    assert {c["reason"] for c in conditions} <= {"RightMissing"}

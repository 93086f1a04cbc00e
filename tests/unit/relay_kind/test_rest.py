"""
A relay whose last reconcile found nothing to do rests: nothing is decided again until something
that a decision depends on has changed. Each of these changes is shown here to end the rest.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from aiohttp import web

from fixtures.answering import answering
from fixtures.made_resources import outbox_relay, relay_body
from fixtures.made_seen import NOW, deployment, leaving, pod, report, seen
from outbox_core.contract.reasons import TerminationMessage
from outbox_core.contract.report import Report
from outbox_operator.kube.kinds import CHILDREN, PODS
from outbox_operator.kube.reports import Reporters
from outbox_operator.kube.secrets import Secrets
from outbox_operator.kube.watch.informer import Informer, Informers
from outbox_operator.kube.watch.watches import Watches
from outbox_operator.kube.writer import Writer
from outbox_operator.relay import gather
from outbox_operator.relay.decide.autoscaling import Scale, ScaleMemory
from outbox_operator.relay.decide.checks import RECOVERED_AFTER
from outbox_operator.relay.decide.children import decide_children
from outbox_operator.relay.decide.replicas import Replicas
from outbox_operator.relay.events import Announced
from outbox_operator.relay.gather import RelayGatherer
from outbox_operator.relay.reconcile import reconciler
from outbox_operator.relay.reconcile.reconciler import RelayReconciler
from outbox_operator.relay.reconcile.rest import LONGEST_REST, figures_of, rests_until
from outbox_operator.relay.seen import RelaySeen
from outbox_operator.relay.spec.resource import OutboxRelay, RelayStatus
from outbox_operator.relay.status import RENEWED_AFTER, STALE_AFTER, decide_status
from outbox_operator.settings import OperatorSettings
from outbox_operator.shared.marks import stamped
from outbox_operator.shared.reasons import Reason
from outbox_operator.shared.seen import Refusal, Secret, Stopped

KEY = ("OutboxRelay", "shop", "orders")
SETTINGS = OperatorSettings(identity="tester")


class Stage:
    """One relay with a pod: an API server, the pod's port and the watches, as they are in a
    cluster."""

    def __init__(self) -> None:
        self.now = datetime.now(UTC)
        self.body: dict[str, Any] = relay_body()
        self.secret = "1"
        self.report = report()
        self.silent = False
        self.asked = 0
        self.decided = 0
        self.written: list[str] = []
        self.informers: dict[str, Informer] = {}
        self.reconcile: Callable[[], Awaitable[None]]
        self._version = 100

    def version(self) -> str:
        self._version += 1
        return str(self._version)

    async def api(self, request: web.Request) -> web.StreamResponse:
        if request.method == "PATCH":
            self.written.append(request.path)
            given = json.loads(await request.read())
            given["metadata"]["resourceVersion"] = version = self.version()
            if "/outboxrelays/" in request.path:
                metadata = {**self.body["metadata"], "resourceVersion": version}
                self.body = {**self.body, "metadata": metadata, "status": given["status"]}
            return web.json_response(given)
        if "/outboxrelays/" in request.path:
            return web.json_response(self.body)
        if "/secrets/" in request.path:
            return web.json_response({"metadata": {"uid": "1", "resourceVersion": self.secret}})
        return web.json_response({"reason": "NotFound"}, status=404)

    async def pod(self, _: web.Request) -> web.StreamResponse:
        self.asked += 1
        if self.silent:
            return web.Response(status=503)
        changing = {"observed_at": self.now, "rates": self.report.rates}
        text = self.report.model_copy(update=changing).model_dump_json(by_alias=True)
        return web.Response(text=text)

    def note(self, kind: str, body: dict[str, Any]) -> None:
        body["metadata"]["resourceVersion"] = self.version()
        self.informers[kind]._note(body)

    def live(self, kind: str) -> dict[str, Any]:
        """A copy of the first object of that kind."""
        found: dict[str, Any] = json.loads(json.dumps(self.informers[kind].of((KEY[1], KEY[2]))[0]))
        return found

    def settle(self) -> None:
        """Its children and its pod, as the operator and Kubernetes would leave them."""
        relay = OutboxRelay.parse(self.body)
        secrets = [Secret("orders-db", "1/1")]
        made = decide_children(relay, RelaySeen(secrets=secrets), SETTINGS, 1, suspend_reaper=True)
        for child in made.wanted:
            body = json.loads(json.dumps(stamped(child, SETTINGS.identity)))
            body["metadata"] |= {"namespace": "shop", "uid": "2", "generation": 1}
            if body["kind"] == "Deployment":
                body["status"] = deployment()["status"]
                template = body["spec"]["template"]
            self.note(body["kind"], body)
        metadata = {
            **template["metadata"],
            "name": "orders-relay-a",
            "namespace": "shop",
            "ownerReferences": [{"name": "orders"}],
        }
        metadata["annotations"] = {**metadata["annotations"], "outbox.dev/resource": "orders"}
        conditions = [{"type": t, "status": "True"} for t in ("Ready", "PodScheduled")]
        status = {"phase": "Running", "podIP": "127.0.0.1", "conditions": conditions}
        self.note("Pod", {"metadata": metadata, "spec": template["spec"], "status": status})


@asynccontextmanager
async def staged(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stage]:
    """At rest."""
    stage = Stage()

    class Clock(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:  # type: ignore[override]
            return stage.now

    class Counting(RelayGatherer):
        def seen(self, *given: Any) -> RelaySeen:
            stage.decided += 1
            return super().seen(*given)

    monkeypatch.setattr(reconciler, "datetime", Clock)
    app = web.Application()
    app.router.add_get("/status", stage.pod)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    monkeypatch.setattr(gather, "PORT", runner.addresses[0][1])
    async with answering(stage.api) as api:
        watches = Watches(lambda _: None)
        informers = Informers(api, (*CHILDREN.values(), PODS), (), lambda _: None, watches)
        stage.informers = {i.kind.name: i for i in informers._all}
        gatherer = Counting(api, informers, Reporters(), Secrets(api, -1.0))
        relays = RelayReconciler(SETTINGS, gatherer, Writer(api, SETTINGS.identity))

        async def reconcile() -> None:
            await relays.reconcile(KEY, stage.body)

        stage.reconcile = reconcile
        stage.settle()
        for _ in range(3):  # it writes its status, reads it, and finds nothing to do
            await reconcile()
        stage.decided, stage.asked = 0, 0
        stage.written.clear()
        try:
            yield stage
        finally:
            await runner.cleanup()


def test_a_relay_at_rest_is_asked_and_nothing_is_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        async with staged(monkeypatch) as stage:
            for _ in range(5):
                stage.now += timedelta(seconds=30)
                await stage.reconcile()
            assert stage.asked == 5
            assert stage.decided == 0
            assert not stage.written

    asyncio.run(test())


def drifted(stage: Stage) -> None:
    body = stage.live("Deployment")
    body["spec"]["replicas"] = 7
    stage.note("Deployment", body)


def lost(stage: Stage) -> None:
    stage.informers["Service"]._forget(("shop", "orders-relay"))


def pod_failed(stage: Stage) -> None:
    body = stage.live("Pod")
    body["status"]["conditions"][0]["status"] = "False"
    stage.note("Pod", body)


def rotated(stage: Stage) -> None:
    stage.secret = "2"


def events_wait(stage: Stage) -> None:
    stage.report = report(pending=3, lag=5.0)


def event_died(stage: Stage) -> None:
    stage.report = report(dead=1)


def falls_silent(stage: Stage) -> None:
    stage.silent = True


def edited(stage: Stage) -> None:
    metadata = {**stage.body["metadata"], "generation": 2}
    stage.body = {**stage.body, "metadata": metadata}


def paused(stage: Stage) -> None:
    metadata = {**stage.body["metadata"], "annotations": {"outbox.dev/reconcile": "paused"}}
    stage.body = {**stage.body, "metadata": metadata}


def status_overwritten(stage: Stage) -> None:
    stage.body = {**stage.body, "status": {**stage.body["status"], "pods": "0/0"}}


def time_passed(stage: Stage) -> None:
    stage.now += RENEWED_AFTER


CHANGES = (drifted, lost, pod_failed, rotated, events_wait, event_died, falls_silent)
OF_THE_RESOURCE = (edited, paused, status_overwritten, time_passed)


@pytest.mark.parametrize("change", [*CHANGES, *OF_THE_RESOURCE])
def test_whatever_changes_ends_the_rest(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[Stage], None]
) -> None:
    async def test() -> None:
        async with staged(monkeypatch) as stage:
            change(stage)
            await stage.reconcile()
            assert stage.decided == 1

    asyncio.run(test())


def test_drift_is_repaired_at_the_next_reconcile(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        async with staged(monkeypatch) as stage:
            drifted(stage)
            await stage.reconcile()
            assert [p for p in stage.written if p.endswith("/deployments/orders-relay")]

    asyncio.run(test())


def test_a_change_while_pods_are_asked_is_decided_on_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test() -> None:
        async with staged(monkeypatch) as stage:
            ask = Reporters.ask

            async def meanwhile(self: Reporters, *given: Any) -> Any:
                found = await ask(self, *given)
                pod_failed(stage)
                return found

            with monkeypatch.context() as patched:
                patched.setattr(Reporters, "ask", meanwhile)
                await stage.reconcile()
            assert stage.decided == 0
            await stage.reconcile()
            assert stage.decided == 1

    asyncio.run(test())


def test_after_a_failed_reconcile_there_is_no_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        async with staged(monkeypatch) as stage:
            with monkeypatch.context() as patched:

                async def fails(*_: Any) -> Any:
                    raise RuntimeError("not now")

                patched.setattr(RelayGatherer, "ask", fails)
                with pytest.raises(RuntimeError):
                    await stage.reconcile()
            await stage.reconcile()
            assert stage.decided == 1

    asyncio.run(test())


def test_the_time_of_the_figures_is_written_again_and_the_rest_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test() -> None:
        async with staged(monkeypatch) as stage:
            before = stage.body["status"]["observedAt"]
            stage.now += RENEWED_AFTER
            await stage.reconcile()
            assert stage.body["status"]["observedAt"] > before
            assert len(stage.written) == 1
            stage.now += timedelta(seconds=30)
            await stage.reconcile()
            assert (stage.decided, len(stage.written)) == (1, 1)

    asyncio.run(test())


def test_pods_that_fall_silent_are_reported_with_the_time_of_their_last_report(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Although the status has not been written since long before."""

    async def test() -> None:
        async with staged(monkeypatch) as stage:
            stage.now += RENEWED_AFTER - timedelta(minutes=1)
            await stage.reconcile()
            assert not stage.written
            last = stage.now
            stage.silent = True
            stage.now += STALE_AFTER / 2
            await stage.reconcile()
            assert not stage.written  # a missed report means nothing
            stage.now += STALE_AFTER / 2
            await stage.reconcile()
            status = RelayStatus.model_validate(stage.body["status"])
            found = {c.type: c for c in status.conditions}["BacklogHealthy"]
            assert (found.status, found.reason) == ("Unknown", Reason.REPORT_STALE)
            assert f"{last:%H:%M:%S} UTC" in found.message
            assert status.observed_at == last.replace(microsecond=0)

    asyncio.run(test())


# What time alone would change ------------------------------------------------------------------

HEALTHY = seen(pod(report=report()), deployment=deployment())
FIXED = Replicas(1, 1, None, ScaleMemory())


def until(
    around: RelaySeen = HEALTHY,
    relay: OutboxRelay | None = None,
    replicas: Replicas = FIXED,
    announced: Announced | None = None,
) -> datetime | None:
    relay = relay or outbox_relay()
    status = decide_status(relay, around, replicas.wanted, replicas.scale, NOW)
    return rests_until(relay, around, status, replicas, announced or Announced(), NOW)


def test_a_rest_ends_when_the_time_of_the_figures_is_due() -> None:
    assert until() == NOW + RENEWED_AFTER


def test_a_rest_without_pods_ends_some_day() -> None:
    none = Replicas(0, 0, None, ScaleMemory())
    relay = outbox_relay(replicas=0)
    assert until(seen(deployment=deployment(0)), relay, none) == NOW + LONGEST_REST


def test_a_reaper_that_is_about_to_resume_is_waited_for() -> None:
    none = Replicas(0, 0, None, ScaleMemory())
    suspended = {("CronJob", "orders-reaper"): {"metadata": {}, "spec": {"suspend": True}}}
    around = seen(deployment=deployment(0), children=suspended)
    assert until(around, outbox_relay(replicas=0), none) is None


def test_a_rest_ends_when_a_container_counts_as_recovered() -> None:
    back = NOW - RECOVERED_AFTER + timedelta(minutes=1)
    stopped = Stopped("relay", 1, TerminationMessage(reason="Defect", message="it fell"), "", back)
    around = seen(pod(report=report(), stopped=(stopped,)), deployment=deployment())
    told = Announced(trouble="Defect")
    assert until(around, announced=told) == NOW + timedelta(minutes=1)


def test_a_notice_that_was_held_back_is_waited_for() -> None:
    around = seen(pod(report=report(dead=2)), deployment=deployment())
    recently: dict[str, datetime] = {Reason.DEAD_LETTERS: NOW - timedelta(minutes=1)}
    assert until(around, announced=Announced(at=recently, dead=1)) is None
    assert until(around, announced=Announced(at=recently, dead=2)) is not None


@pytest.mark.parametrize(
    ("memory", "replicas", "rests"),
    [
        (ScaleMemory(low_since=NOW), 1, True),
        (ScaleMemory(low_since=NOW), 2, False),  # one is removed when it has been low for long
        (ScaleMemory(low_since=NOW, left=2), 1, False),
        (ScaleMemory(low_since=NOW, needed=2, returns=1), 1, False),
    ],
)
def test_an_autoscaled_relay_rests_when_it_is_as_small_as_it_may_be(
    memory: ScaleMemory, replicas: int, rests: bool
) -> None:
    relay = outbox_relay(autoscaling={"minReplicas": 1, "maxReplicas": 4})
    pods = [pod(f"orders-relay-{n}", report=report()) for n in range(replicas)]
    around = seen(*pods, deployment=deployment(replicas))
    scale = Scale(replicas, Reason.AS_EXPECTED, "", memory)
    found = until(around, relay, Replicas(replicas, replicas, scale, memory))
    assert (found is not None) == rests


def test_there_is_no_rest_while_something_is_left_to_do() -> None:
    refused = replace(HEALTHY, refusals=[Refusal("Service", "orders-relay", "no")])
    starting = seen(pod(ready=False), deployment=deployment(ready=0))
    waiting = seen(pod(report=report(pending=1)), deployment=deployment())
    unheard = seen(pod(), deployment=deployment())
    for around in (refused, starting, waiting, unheard):
        assert until(around) is None
    assert until(relay=leaving(outbox_relay(), "somebody/else")) is None


def test_figures_that_differ_in_every_report_are_no_change() -> None:
    def figures(**given: Any) -> object:
        return figures_of({"a": report(**given)})

    assert figures(busy=(0.1, 0.2)) == figures(busy=(0.2, 0.1), at=NOW + timedelta(hours=1))
    assert figures() != figures(rate=0.1)
    assert figures() != figures(troubles={"store": "gone"})
    assert figures() != figures_of({})


def test_every_figure_of_a_report_counts_unless_it_is_known_to_change_all_the_time() -> None:
    """A new field of the report ends the rest when it changes, without anybody thinking of it."""
    found = figures_of({"a": report()})
    assert isinstance(found, tuple)
    assert {*Report.model_fields} - {*found[0]["a"]} == {"observed_at", "busy"}
    assert {*found[0]["a"]["rates"]} == {"published", "failed", "dead"}


def test_of_two_reports_that_contradict_each_other_the_newer_one_counts() -> None:
    older, newer = report(at=NOW), report(dead=1, at=NOW + timedelta(seconds=1))
    turned = newer.model_copy(update={"observed_at": NOW - timedelta(seconds=1)})
    assert figures_of({"a": older, "b": newer}) != figures_of({"a": older, "b": turned})

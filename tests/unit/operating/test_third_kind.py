"""A kind that the tables know, and nothing else does, is handled by all that the kinds share."""

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

import kopf
import pytest
from aiohttp import web
from prometheus_client import generate_latest

from fixtures.answering import answering
from outbox_operator.__main__ import usage
from outbox_operator.dispatch import Dispatcher
from outbox_operator.handlers import register
from outbox_operator.kinds import CUSTOM_KINDS, CustomKind
from outbox_operator.kube.api import ApiError
from outbox_operator.kube.kinds import CUSTOM, CUSTOM_API, ObjectKind
from outbox_operator.kube.owned import confirm
from outbox_operator.kube.watch.readiness import readiness
from outbox_operator.kube.writer import Writer
from outbox_operator.metrics import Metrics
from outbox_operator.program import Operator
from outbox_operator.reconciling import KindReconciler, Reconciled
from outbox_operator.settings import OperatorSettings, load
from outbox_operator.shared.accounts import build_account
from outbox_operator.shared.checks import the_operator_holds_back
from outbox_operator.shared.conditions import Condition
from outbox_operator.shared.forbidden import what_is_forbidden
from outbox_operator.shared.names import service_account_of
from outbox_operator.shared.notices import Notice
from outbox_operator.shared.objects import API_VERSION, Body, Key, Resource, Status
from outbox_operator.shared.pausing import PAUSED, RECONCILE
from outbox_operator.shared.pod_settings import PodSettings
from outbox_operator.shared.seen import Surroundings


class ArchiveCondition(StrEnum):
    ARCHIVED = "Archived"
    RECONCILING = "Reconciling"
    STALLED = "Stalled"


ARCHIVE = CustomKind(
    name="OutboxArchive",
    plural="outboxarchives",
    short="oba",
    app="outbox-archive",
    role="archive",
    policy="archives",
    editable=True,
    conditions=ArchiveCondition,
    problems=(ArchiveCondition.STALLED,),
)
KEY = (ARCHIVE.name, "shop", "old")


class ArchiveSpec(Status):
    pod: PodSettings = PodSettings()


class ArchiveStatus(Status):
    conditions: tuple[Condition, ...] = ()


class OutboxArchive(Resource):
    spec: ArchiveSpec = ArchiveSpec()
    status: ArchiveStatus = ArchiveStatus()


class ArchiveReconciler(KindReconciler[object]):
    """It may not read what it needs."""

    def __init__(self, settings: OperatorSettings, writer: Writer) -> None:
        super().__init__(ARCHIVE, settings, writer, object)

    async def reconcile(self, key: Key, body: Body) -> Reconciled:
        archive, now = OutboxArchive.parse(body), datetime.now(UTC)
        self._memory(key, archive.metadata.uid)
        held = self._restraint(archive, Surroundings(), now)
        if held is None:
            raise ApiError(403, "Forbidden", "secrets is forbidden", frozenset())
        shown: list[Notice] = [*self._unknown_fields.notices(archive)]
        judged = Condition.model_validate(
            {
                "type": ArchiveCondition.STALLED,
                "status": "False",
                "reason": held.reason,
                "message": held.message,
                "last_transition_time": now,
            }
        )
        shown += self._restrainer.notices(archive)
        await self._report(archive, body, ArchiveStatus(conditions=(judged,)), shown, now)
        return Reconciled(conditions=(judged,))


@pytest.fixture(autouse=True)
def third_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CUSTOM_KINDS, ARCHIVE.name, ARCHIVE)
    monkeypatch.setitem(CUSTOM, ARCHIVE.name, ObjectKind(ARCHIVE.name, CUSTOM_API, ARCHIVE.plural))


def archive_body(annotations: Mapping[str, str] | None = None, **pod: Any) -> dict[str, Any]:
    meta = {"name": "old", "namespace": "shop", "uid": "1", "generation": 1, "resourceVersion": "1"}
    return {
        "apiVersion": API_VERSION,
        "kind": ARCHIVE.name,
        "metadata": {**meta, "annotations": dict(annotations or {})},
        "spec": {"pod": pod},
    }


class Server:
    """It keeps the status and the Events that are written."""

    def __init__(self, body: dict[str, Any]) -> None:
        self.body = body
        self.events: list[str] = []

    async def answer(self, request: web.Request) -> web.Response:
        if request.path.endswith("/events"):
            self.events.append((await request.json())["reason"])
            return web.json_response({})
        assert request.path.startswith(f"{CUSTOM_API}/namespaces/shop/outboxarchives/old")
        if request.path.endswith("/status"):
            self.body = {**self.body, "status": (await request.json())["status"]}
        return web.json_response(self.body)

    def conditions(self) -> dict[str, tuple[str, str]]:
        found = self.body["status"]["conditions"]
        return {c["type"]: (c["status"], c["reason"]) for c in found}


def reconciled(body: dict[str, Any], metrics: Metrics) -> Server:
    server = Server(body)

    async def test() -> None:
        async with answering(server.answer) as api:
            writer = Writer(api)
            reconciler = ArchiveReconciler(OperatorSettings(), writer)
            dispatcher = Dispatcher({ARCHIVE.name: reconciler}, writer, metrics)
            dispatcher.seen(KEY, body)
            await confirm(api, OutboxArchive.parse(body))
            try:
                await dispatcher.reconcile(KEY)
            finally:
                dispatcher.seen(KEY, None)

    asyncio.run(test())
    return server


def test_every_series_of_its_conditions_exists_and_counts() -> None:
    metrics = Metrics()
    metrics.judged(KEY, {"Archived": "True"})
    text = generate_latest(metrics.registry).decode()
    assert (
        'outbox_operator_resources{condition="Archived",kind="OutboxArchive",status="True"} 1.0'
        in text
    )
    metrics.forget(KEY)
    assert 'outcome="failed"' in text
    assert 'outbox_operator_reconciles_total{kind="OutboxArchive",outcome="failed"} 0.0' in text


def test_an_installation_can_forbid_fields_of_it() -> None:
    settings = load({"OUTBOX_OPERATOR_ARCHIVE_FORBID": "image, env"})
    archive = OutboxArchive.parse(archive_body(image="mine:1"))
    held = what_is_forbidden(archive, settings)
    assert held is not None
    assert "spec.pod.image" in held.message
    assert "policy.archives.forbid" in held.message
    assert the_operator_holds_back(archive, Surroundings(restraint=held)) is not None
    assert what_is_forbidden(archive, OperatorSettings()) is None


def test_its_reconciliation_can_be_paused() -> None:
    metrics = Metrics()
    server = reconciled(archive_body({RECONCILE: PAUSED}), metrics)
    assert server.conditions() == {"Stalled": ("False", "ReconcilePaused")}
    assert "kubectl annotate oba -n shop old" in server.body["status"]["conditions"][0]["message"]
    assert server.events == ["ReconcilePaused"]


def test_a_right_that_the_operator_lacks_is_shown() -> None:
    server = Server(archive_body())

    async def test() -> None:
        async with answering(server.answer) as api:
            writer = Writer(api)
            reconciler = ArchiveReconciler(OperatorSettings(), writer)
            dispatcher = Dispatcher({ARCHIVE.name: reconciler}, writer, Metrics())
            dispatcher.seen(KEY, server.body)
            with pytest.raises(ApiError):
                await dispatcher.reconcile(KEY)

    asyncio.run(test())
    missing = "RightMissing"
    assert server.conditions() == {"Stalled": ("True", missing), "Reconciling": ("False", missing)}


def test_its_children_have_names_of_their_own() -> None:
    archive = OutboxArchive.parse(archive_body())
    account = build_account(archive, archive.spec.pod)
    assert account["metadata"]["name"] == service_account_of(archive) == "old-archive"
    assert account["metadata"]["labels"]["app.kubernetes.io/name"] == "outbox-archive"


def test_it_is_watched_and_named_where_the_kinds_are_listed() -> None:
    assert "OutboxRelay, OutboxReplay and OutboxArchive" in readiness([]).message
    registry = kopf.OperatorRegistry()
    register(registry, Operator(OperatorSettings()))
    watched = {h.selector.any_name for h in registry._watching.get_all_handlers() if h.selector}
    assert watched == {"outboxrelays", "outboxreplays", "outboxarchives"}


def test_its_variable_is_in_the_usage() -> None:
    text = " ".join(usage().format_help().split())
    assert "the kinds OutboxRelay, OutboxReplay and OutboxArchive" in text
    assert "OUTBOX_OPERATOR_ARCHIVE_FORBID Fields that an OutboxArchive may not set" in text
    assert "OUTBOX_OPERATOR_FORBID" not in text

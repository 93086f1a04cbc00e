"""Operator, definitions and relays of different versions: what one does not know harms nobody."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError, create_model

from fixtures.corpus import CORPUS, KINDS, Case
from fixtures.made_resources import KAFKA, outbox_relay, outbox_replay, relay_body
from outbox_core.contract.reasons import TerminationMessage
from outbox_core.contract.replay import Preview, ReplayReport, ReplaySettings, TypeCount
from outbox_core.contract.report import (
    Backlog,
    Busy,
    ParkedDestination,
    Rates,
    Report,
    TopError,
)
from outbox_core.contract.settings import RelaySettings, explain
from outbox_operator.relay.spec.settings import settings
from outbox_operator.replay.spec.settings import replay_settings
from outbox_operator.shared.objects import without_defaults

EVERYTHING = [Case(CORPUS / "good" / f"{kind}-everything.yaml") for kind in ("relay", "replay")]
PLAIN = {"affinity", "topologySpreadConstraints", "egress", "volumes"}
"""Kubernetes' own: we do not look into them."""
PLAIN |= {"securityContext", "containerSecurityContext"}
FREE = {"config", "labels", "annotations", "nodeSelector", "sparkConf", "requests", "limits"}
"""Any key is one of theirs."""

RELAY = {"name": "orders", "publisher": {"kafka": KAFKA}}
REPLAY = {"id": "shop/again@1", "relay": "orders", "reason": "a topic was missing"}

Path = tuple[str | int, ...]


def objects(value: Any, path: Path = ()) -> Iterator[tuple[Path, dict[str, Any]]]:
    if isinstance(value, dict):
        yield path, value
        for name, inner in value.items():
            if name not in PLAIN | FREE:
                yield from objects(inner, (*path, name))
    if isinstance(value, list):
        for number, inner in enumerate(value):
            yield from objects(inner, (*path, number))


# Newer definitions, older operator ----------------------------------------------------------------


@pytest.mark.parametrize("case", EVERYTHING, ids=str)
def test_a_field_that_is_not_known_is_ignored_wherever_it_is_and_named(case: Case) -> None:
    (body,) = case.bodies
    kind = KINDS[body["kind"]]
    places = [path for path, _ in objects(body["spec"], ("spec",))]
    assert len(places) > 8
    for place in places:
        newer = copy.deepcopy(body)
        dict(objects(newer))[place]["fromTheFuture"] = {"a": [1]}
        parsed = kind.parse(newer)
        assert parsed.spec == kind.parse(body).spec
        assert parsed.unknown_fields == (".".join(map(str, (*place, "fromTheFuture"))),)
    assert kind.parse(body).unknown_fields == ()


def test_what_is_known_stays_as_strict_beside_it() -> None:
    body = relay_body(batchSize="many", fromTheFuture=1)
    with pytest.raises(ValidationError) as caught:
        KINDS["OutboxRelay"].parse(body)
    said = explain(caught.value)
    assert "spec.batchSize: Input should be a valid integer" in said
    assert "this operator does not know it: spec.fromTheFuture" in said


def test_what_was_sent_stays_as_it_was() -> None:
    body = relay_body(fromTheFuture=1)
    KINDS["OutboxRelay"].parse(body)
    assert body["spec"]["fromTheFuture"] == 1


# Newer operator, older relay ----------------------------------------------------------------------


def models(model: type[BaseModel], path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Every field with a default, below those that have one, too."""
    for name, field in model.model_fields.items():
        if field.is_required():
            continue
        default = field.get_default(call_default_factory=True)
        yield (*path, name), default
        if isinstance(default, BaseModel) and default == type(default)():
            yield from models(type(default), (*path, name))


def nested(path: Path, value: Any) -> dict[str, Any]:
    for name in reversed(path):
        value = {name: value}
    return dict(value)


@pytest.mark.parametrize(("kind", "needed"), [(RelaySettings, RELAY), (ReplaySettings, REPLAY)])
def test_a_default_is_never_written(kind: type[BaseModel], needed: dict[str, Any]) -> None:
    fields = list(models(kind))
    assert len(fields) > 15
    for path, default in fields:
        made = kind.model_validate({**needed, **nested(path, default)})
        assert without_defaults(made) == needed, path  # type: ignore[arg-type]
    newer = create_model("Newer", __base__=kind, invention=(int, 5))
    kind.model_validate(without_defaults(newer.model_validate(needed)))  # type: ignore[arg-type]
    used = newer.model_validate({**needed, "invention": 6})
    with pytest.raises(ValidationError, match="invention"):
        kind.model_validate(without_defaults(used))  # type: ignore[arg-type]


def test_a_resource_as_the_api_server_fills_it_in_makes_the_smallest_files() -> None:
    relay = outbox_relay()
    filled = relay_body(**relay.spec.model_dump(mode="json", by_alias=True, exclude_none=True))
    assert set(filled["spec"]) > {"batchSize", "retry", "polling", "log"}
    smallest = {"name": "shop/orders", "publisher": {"kafka": KAFKA}}
    assert settings(KINDS["OutboxRelay"].parse(filled)) == smallest  # type: ignore[arg-type]
    replay = outbox_replay()
    assert replay_settings(replay, relay) == {
        "id": "shop/again@01234567",
        "relay": "shop/orders",
        "reason": "the topic was missing",
    }


def test_what_is_asked_for_is_written_and_nothing_beside_it() -> None:
    asked = {"retry": {"maxAttempts": 3}, "polling": {"longest": "1s"}, "batchSize": 100}
    assert settings(outbox_relay(**asked)) == {
        "name": "shop/orders",
        "publisher": {"kafka": KAFKA},
        **asked,
    }


def test_a_newer_field_of_a_file_is_refused_by_its_name() -> None:
    """By hand it is most likely a slip."""
    with pytest.raises(ValidationError) as caught:
        RelaySettings.model_validate({**RELAY, "batchSzie": 5})
    assert "batchSzie: unknown field" in explain(caught.value)


# Relays and drivers of any version, as they report ------------------------------------------------

REPORT: dict[str, Any] = {
    "version": "9.9.9",
    "relay": "shop/orders",
    "claimedBy": "orders-relay-1",
    "ordering": "Key",
    "ready": False,
    "troubles": {"store": "away"},
    "breaker": "closed",
    "parked": [{"name": "a", "seconds": 1.0, "why": "gone"}],
    "lanes": 3,
    "backlog": {
        "pending": 1,
        "claimed": 0,
        "dead": 0,
        "oldestPendingSeconds": 1.0,
        "approximate": False,
    },
    "rates": {"published": 1.0, "failed": 0.0, "dead": 0.0},
    "busy": {"store": 0.1, "publish": 0.2, "workers": 2},
    "topErrors": [{"errorClass": "event", "code": "X", "text": "no", "count": 1}],
    "observedAt": "2026-06-01T12:00:00Z",
}
REPLAYING: dict[str, Any] = {
    "version": "9.9.9",
    "id": "shop/again@1",
    "stage": "Running",
    "preview": {"byType": [{"eventType": "a", "count": 1}]},
    "observedAt": "2026-06-01T12:00:00Z",
}
WORDS = {"reason": "SomethingNew", "message": "no"}


@pytest.mark.parametrize(
    ("kind", "told"), [(Report, REPORT), (ReplayReport, REPLAYING), (TerminationMessage, WORDS)]
)
def test_what_a_newer_version_adds_is_ignored(kind: type[BaseModel], told: dict[str, Any]) -> None:
    newer = copy.deepcopy(told)
    for path, place in list(objects(newer)):
        if path != ("troubles",):
            place["fromTheFuture"] = {"a": 1}
    assert kind.model_validate(newer) == kind.model_validate(told)


OLDEST: dict[type[BaseModel], set[str]] = {
    Report: {
        "version", "relay", "claimed_by", "ordering", "ready", "troubles", "breaker", "lanes",
        "backlog", "rates", "top_errors", "observed_at",
    },
    Backlog: {"pending", "claimed", "dead", "oldest_pending_seconds", "approximate"},
    Rates: {"published", "failed", "dead"},
    Busy: {"store", "publish", "workers"},
    ParkedDestination: {"name", "seconds", "why"},
    TopError: {"error_class", "code", "text", "count"},
    ReplayReport: {"version", "id", "stage", "observed_at"},
    Preview: set(),
    TypeCount: {"event_type", "count"},
    TerminationMessage: {"reason", "message"},
}  # fmt: skip
"""What every version tells. More must never be asked for: an older one does not tell it."""


@pytest.mark.parametrize("kind", OLDEST, ids=lambda kind: str(kind.__name__))
def test_nothing_is_required_that_the_oldest_version_does_not_report(kind: type[BaseModel]) -> None:
    assert {n for n, f in kind.model_fields.items() if f.is_required()} == OLDEST[kind]

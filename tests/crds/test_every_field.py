"""
Every field of both kinds is edited once on a live resource: it takes effect, is refused, or becomes
a condition. The fields are those of crds/; their edits are in `fixtures.field_edits`.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from kubernetes.client.exceptions import ApiException
from pydantic import ValidationError

from fixtures.api_server import definitions
from fixtures.chart import merged
from fixtures.cluster import MANAGER, Kube, Namespace
from fixtures.edits import Edit
from fixtures.field_edits import EDITS, leaves, values
from fixtures.made_replays import REGISTERED, around, child, ended, looked
from fixtures.made_resources import outbox_relay, relay_body, replay_body
from fixtures.made_seen import NOW, seen
from outbox_operator.kube.api import ApiError
from outbox_operator.kube.refusals import refusal_of
from outbox_operator.relay.decide.autoscaling import Load, ScaleMemory, scale
from outbox_operator.relay.decide.children import decide_children, fixed_replicas
from outbox_operator.relay.decide.deletion import decide_finalizers
from outbox_operator.relay.spec.resource import OutboxRelay
from outbox_operator.relay.status import decide_status
from outbox_operator.replay.decide.children import decide_replay_children
from outbox_operator.replay.decide.next_reconcile import seconds_to_live
from outbox_operator.replay.decide.step import decide_step
from outbox_operator.replay.spec.resource import OutboxReplay
from outbox_operator.settings import OperatorSettings
from outbox_operator.shared.objects import API_VERSION

Body = dict[str, Any]
BASE = {"OutboxRelay": relay_body, "OutboxReplay": replay_body}

FIELDS = [
    (crd["spec"]["names"]["kind"], leaf)
    for crd in definitions()
    for leaf in leaves(
        crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    )
]


def edit_of(kind: str, leaf: str) -> Edit:
    assert leaf in EDITS[kind], (
        f"new field spec.{leaf}: add an edit to tests/fixtures/field_edits.py"
    )
    return EDITS[kind][leaf](leaf)


def test_no_edit_is_of_a_field_that_is_gone() -> None:
    assert {(kind, leaf) for kind, edits in EDITS.items() for leaf in edits} <= set(FIELDS)


# What follows from a resource -------------------------------------------------------------------


def outcome(body: Body) -> Any:
    """All that the operator makes of it, as plain values; or why it cannot."""
    try:
        if body["kind"] == "OutboxRelay":
            return of_relay(OutboxRelay.parse(body))
        return of_replay(OutboxReplay.parse(body))
    except ValidationError as error:
        return str(error)  # shown as SpecInvalid


def of_relay(relay: OutboxRelay) -> list[Any]:
    replicas = fixed_replicas(relay)
    judged = decide_status(relay, seen(), replicas or 1, None, NOW).conditions
    return [
        decide_children(relay, seen(), OperatorSettings(), replicas or 1),
        [(c.type, c.status, c.reason) for c in judged],
        decide_finalizers(relay, seen()),
        scaled(relay),
    ]


def scaled(relay: OutboxRelay) -> list[int]:
    """How many pods at each look while too much waits for an hour, and for two hours nothing."""
    wanted, memory, pods = relay.spec.autoscaling, ScaleMemory(), 1
    found: list[int] = []
    for look in range(0 if wanted is None else 3 * 360):
        assert wanted is not None
        lag = 120.0 if look < 360 else 0.0
        load = Load(lag, int(lag) * 100, 100.0 * pods, None, healthy=True, pods=pods)
        made = scale(wanted, pods, pods, load, memory, NOW + look * timedelta(seconds=10))
        pods, memory = made.replicas, made.memory
        found.append(pods)
    return found


def of_replay(replay: OutboxReplay) -> list[Any]:
    relay = outbox_relay(name=replay.spec.relay_ref.name)
    around_it = around(relay=relay.model_copy(update={"status": REGISTERED.status}))
    step = decide_step(replay, around_it, NOW)
    first = looked(replay, around_it)
    failing = replay.model_copy(update={"status": first})
    failed = looked(failing, replace(around(ended(1), job=child()), relay=around_it.relay))
    done = first.model_copy(update={"completion_time": NOW})
    return [
        decide_replay_children(replay, around_it, step, OperatorSettings()),
        [(c.type, c.status, c.reason) for c in first.conditions],
        (failed.phase, seconds_to_live(replay, done, NOW)),
    ]


def changed_children(before: Any, after: Any) -> list[Body]:
    if isinstance(before, str) or isinstance(after, str):
        return []
    old, new = before[0], after[0]
    made = [*new.wanted, getattr(new, "attempt", None)]
    had = [*old.wanted, getattr(old, "attempt", None)]
    return [c for c in made if c is not None and c not in had and c["kind"] != "SparkApplication"]


# On the server ----------------------------------------------------------------------------------


def api_of(server: Kube, kind: str) -> Any:
    return server.dynamic.resources.get(api_version=API_VERSION, kind=kind)


def body_of(kind: str, namespace: Namespace, spec: Body) -> Body:
    body = BASE[kind](name="orders", namespace=namespace.name)
    meta = {"generateName": "edited-", "namespace": namespace.name}
    return {**body, "metadata": meta, "spec": merged(body["spec"], spec)}


def created(server: Kube, namespace: Namespace, body: Body, **how: Any) -> Body:
    made: Body = api_of(server, body["kind"]).create(body=body, namespace=namespace.name, **how)
    found: Body = made.to_dict()  # type: ignore[attr-defined]
    return found


def edited(server: Kube, live: Body, spec: Body) -> Body | str:
    """As it is then; or what the server says against it."""
    meta = live["metadata"]
    try:
        done = api_of(server, live["kind"]).patch(
            *({"spec": spec}, meta["name"], meta["namespace"]),
            content_type="application/merge-patch+json",
            query_params=[("fieldValidation", "Strict")],
        )
    except ApiException as error:
        if error.status != 422:  # it is not the edit that is wrong
            raise
        return str(json.loads(error.body or "{}")["message"])
    found: Body = done.to_dict()
    return found


def applied(server: Kube, namespace: Namespace, children: list[Body]) -> None:
    """The server takes them, or says against them what becomes a condition, and no retry loop."""
    for found in children:
        api = server.dynamic.resources.get(api_version=found["apiVersion"], kind=found["kind"])
        name = found["metadata"]["name"]
        how = {"name": name, "namespace": namespace.name, "field_manager": MANAGER}
        try:
            api.server_side_apply(body=found, force_conflicts=True, dry_run="All", **how)
        except ApiException as error:
            # Raises what would be tried again for ever.
            refusal_of(found["kind"], name, ApiError.of(error.status, (error.body or "").encode()))


@pytest.fixture(scope="module")
def place(server: Kube) -> Iterator[Namespace]:
    """One for all of them: each edit has a resource of its own."""
    made = server.core.create_namespace({"metadata": {"generateName": "every-field-"}})
    yield Namespace(server, made.metadata.name)
    server.core.delete_namespace(made.metadata.name)


@pytest.mark.parametrize(("kind", "leaf"), FIELDS, ids=[f"{k}-{leaf}" for k, leaf in FIELDS])
def test_an_edit_takes_effect_or_is_refused_or_becomes_a_condition(
    server: Kube, place: Namespace, kind: str, leaf: str
) -> None:
    edit = edit_of(kind, leaf)
    before = created(server, place, body_of(kind, place, edit.before))
    after = edited(server, before, edit.after)
    if isinstance(after, str):  # refused, in words
        assert after
        return
    assert values(before["spec"], leaf) != values(after["spec"], leaf), "it edits something else"
    was, now = (outcome(body) for body in (before, after))
    assert now != was, "nobody notices that it was edited"
    applied(server, place, changed_children(was, now))


REPLAYS = [leaf for kind, leaf in FIELDS if kind == "OutboxReplay"]


@pytest.mark.parametrize("leaf", REPLAYS)
def test_a_replay_is_fixed_but_for_suspend_and_each_field_counts_from_the_start(
    server: Kube, place: Namespace, leaf: str
) -> None:
    """Of those that cannot be edited afterwards, too, none is passed over."""
    kind = "OutboxReplay"
    edit = edit_of(kind, leaf)
    specs = (edit.before, edit.after)
    one, other = (
        created(server, place, body_of(kind, place, spec), dry_run="All") for spec in specs
    )
    other["metadata"] = one["metadata"]
    was, now = (outcome(body) for body in (one, other))
    assert now != was, "nobody notices it"
    applied(server, place, changed_children(was, now))

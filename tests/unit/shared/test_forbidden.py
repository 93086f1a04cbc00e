"""What an installation forbids: by which name, which field, and that it is said with its cure."""

from typing import Any

import pytest

from fixtures.made_resources import outbox_relay, outbox_replay
from fixtures.made_seen import NOW, deployment, pod, retiring, seen
from outbox_core.errors import SettingsError
from outbox_operator.relay.decide.children import decide_children
from outbox_operator.relay.decide.deletion import without_forbidden
from outbox_operator.relay.spec.resource import OutboxRelay
from outbox_operator.relay.status import decide_status
from outbox_operator.replay.spec.resource import OutboxReplay
from outbox_operator.settings import OperatorSettings, load
from outbox_operator.shared.forbidden import FIELDS, what_is_forbidden

ENV = {"env": [{"name": "A", "value": "1"}]}


@pytest.mark.parametrize(
    ("resource", "forbids", "field"),
    [
        (outbox_relay(pod={"image": "mine:1"}), "image", "spec.pod.image"),
        (outbox_relay(pod={"serviceAccountName": "x"}), "serviceAccountName", "serviceAccountName"),
        (
            outbox_relay(pod={"serviceAccountAnnotations": {"a": "b"}}),
            "serviceAccountName",
            "spec.pod.serviceAccountAnnotations",
        ),
        (outbox_relay(pod=ENV), "env", "spec.pod.env"),
        (outbox_relay(pod={"nodeSelector": {"a": "b"}}), "podSettings", "spec.pod.nodeSelector"),
        (outbox_relay(pod={"securityContext": {}}), "podSettings", "spec.pod.securityContext"),
        (
            outbox_relay(pod={"containerSecurityContext": {}}),
            "podSettings",
            "spec.pod.containerSecurityContext",
        ),
        (outbox_replay(pod={"image": "mine:1"}), "image", "spec.pod.image"),
        (outbox_replay(sparkConf={"spark.a": "b"}), "sparkConf", "spec.sparkConf"),
    ],
)
def test_a_forbidden_field_is_named_with_its_cure(
    resource: OutboxRelay | OutboxReplay, forbids: Any, field: str
) -> None:
    relay = isinstance(resource, OutboxRelay)
    settings = OperatorSettings(forbid={resource.kind: (forbids,)})
    found = what_is_forbidden(resource, settings)
    assert found is not None
    assert found.blocks_writes
    assert field in found.message
    assert f"policy.{'relays' if relay else 'replays'}.forbid" in found.message
    assert what_is_forbidden(resource, OperatorSettings()) is None


@pytest.mark.parametrize("name", [name for name in FIELDS if name != "sparkConf"])
def test_what_sets_nothing_of_it_is_let_through(name: Any) -> None:
    settings = OperatorSettings(forbid={"OutboxRelay": (name,), "OutboxReplay": (name,)})
    assert what_is_forbidden(outbox_relay(pod={"resources": {}, "env": []}), settings) is None
    assert what_is_forbidden(outbox_replay(), settings) is None


def test_it_is_shown_and_so_it_is_of_one_that_is_being_deleted() -> None:
    settings = OperatorSettings(forbid={"OutboxRelay": ("image",)})
    for relay in (outbox_relay(pod={"image": "x"}), retiring(pod={"image": "x"})):
        held = what_is_forbidden(relay, settings)
        around = seen(pod(), deployment=deployment(), restraint=held)
        status = decide_status(relay, around, 1, None, NOW)
        degraded = next(c for c in status.conditions if c.type == "Degraded")
        assert (degraded.status, degraded.reason) == ("True", "Forbidden")
    assert "spec.deletionPolicy to Retain" in degraded.message


def test_the_lists_are_given_with_commas() -> None:
    settings = load(
        {"OUTBOX_OPERATOR_RELAY_FORBID": "image, env", "OUTBOX_OPERATOR_REPLAY_FORBID": ""}
    )
    assert settings.forbid == {"OutboxRelay": ("image", "env")}


def test_a_name_that_the_kind_does_not_have_is_refused_with_those_it_has() -> None:
    with pytest.raises(SettingsError, match=r"RELAY_FORBID has sparkConf; it may have image, "):
        load({"OUTBOX_OPERATOR_RELAY_FORBID": "image,sparkConf"})
    with pytest.raises(SettingsError, match="forbid"):
        load({"OUTBOX_OPERATOR_FORBID": "image"})


def test_one_that_is_deleted_goes_with_pods_of_the_operators_own() -> None:
    relay = without_forbidden(retiring(pod={"image": "x", "env": ENV["env"]}))
    settings = OperatorSettings(forbid={"OutboxRelay": ("podSettings",)}, relay_image="ours:1")
    assert what_is_forbidden(relay, settings) is None
    (job,) = [
        child
        for child in decide_children(relay, seen(), settings, 0).wanted
        if child["kind"] == "Job"
    ]
    assert job["spec"]["template"]["spec"]["containers"][0]["image"] == "ours:1"

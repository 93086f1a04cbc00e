"""Which changes of pods wait for their turn, and when that is."""

import math
from datetime import timedelta
from typing import Any

import pytest

from fixtures.made_resources import outbox_relay
from fixtures.made_seen import NOW, seen
from outbox_operator.relay.decide.children import decide_children
from outbox_operator.relay.decide.rollout import revision_in_use
from outbox_operator.relay.decide.staging import Turns, comes_from_the_operator, without_staged
from outbox_operator.relay.seen import RelaySeen
from outbox_operator.relay.spec.resource import OutboxRelay, RelayStatus, RolledOut
from outbox_operator.settings import OperatorSettings
from outbox_operator.shared.marks import stamped
from outbox_operator.shared.seen import Secret

OLD, NEW = OperatorSettings(relay_image="relay:1"), OperatorSettings(relay_image="relay:2")


def relay(generation: int = 1, revision: str | None = None, **spec: Any) -> OutboxRelay:
    """Whose pods were rolled out, by the old operator."""
    plain = outbox_relay(**spec)
    done = RolledOut(generation=generation, revision=revision or revision_of(plain))
    status = RelayStatus(observed_generation=1, rolled_out=done)
    return plain.model_copy(update={"status": status})


def revision_of(of: OutboxRelay) -> str | None:
    return revision_in_use(of, made(of))


def made(of: OutboxRelay, by: OperatorSettings = OLD, replicas: int = 1) -> RelaySeen:
    """As that operator left it."""
    wanted = decide_children(of, seen(), by, replicas).wanted
    return seen(children={(c["kind"], c["metadata"]["name"]): stamped(c, "x") for c in wanted})


def waits(
    of: OutboxRelay, around: RelaySeen, by: OperatorSettings = NEW, replicas: int = 1
) -> bool:
    return comes_from_the_operator(of, around, decide_children(of, around, by, replicas).wanted)


def test_another_default_image_waits() -> None:
    assert waits(relay(), made(relay()))


def test_nothing_that_changed_waits_for_nothing() -> None:
    assert not waits(relay(), made(relay()), OLD)


def test_a_new_relay_does_not_wait() -> None:
    assert not waits(outbox_relay(), seen())


def test_an_edit_does_not_wait_also_if_it_was_observed_and_refused() -> None:
    assert not waits(relay(generation=0), made(relay()))


def test_what_was_undone_is_repaired_at_once() -> None:
    """`kubectl rollout undo`: its pods are of another revision than was rolled out."""
    assert not waits(relay(revision="another"), made(relay()))


@pytest.mark.parametrize("what", ["orphaned", "paused"])
def test_an_orphan_and_a_paused_rollout_do_not_wait(what: str) -> None:
    around = made(relay())
    live = around.children["Deployment", "orders-relay"]
    if what == "paused":
        live["spec"]["paused"] = True
    else:
        del live["metadata"]["ownerReferences"]
    assert not waits(relay(), around)


def test_a_changed_secret_does_not_wait() -> None:
    around = made(relay())
    changed = seen(children=around.children, secrets=[Secret("orders-db", "1/2")])
    assert not waits(relay(), changed)


def test_more_pods_do_not_wait() -> None:
    assert not waits(relay(), made(relay()), replicas=2)


def test_what_somebody_changed_by_hand_is_repaired_at_once() -> None:
    around = made(relay())
    around.children["Deployment", "orders-relay"]["spec"]["template"]["spec"]["x"] = 1
    assert not waits(relay(), around, OLD)


@pytest.mark.parametrize(("kind", "stays"), [("Deployment", False), ("Service", True)])
def test_only_what_makes_other_pods_is_left_out(kind: str, stays: bool) -> None:
    around = made(relay())
    wanted = decide_children(relay(), around, NEW, 1).wanted
    assert (kind in {c["kind"] for c in without_staged(around, wanted)}) is stays
    assert without_staged(seen(), wanted) == wanted


def test_turns_follow_each_other() -> None:
    pause = timedelta(seconds=5)
    turns = Turns(pause)
    names = [("shop", name) for name in ("a", "b", "c")]
    assert [turns.of(name, NOW) for name in names] == [NOW, NOW + pause, NOW + 2 * pause]
    assert turns.of(names[1], NOW + pause) == NOW + pause  # it keeps its turn
    assert turns.left(names[2], NOW) == 10
    assert turns.left(names[0], NOW) == math.inf
    turns.done(names[0])
    much_later = NOW + timedelta(hours=1)
    assert turns.of(names[0], much_later) == much_later

"""A right that the operator lacks, as the owner of a resource sees it."""

import pytest

from fixtures.made_resources import outbox_relay
from fixtures.made_seen import NOW, deployment, pod, seen
from outbox_operator.kinds import CUSTOM_KINDS, RECONCILING, RELAY, STALLED, CustomKind
from outbox_operator.relay.status import decide_status
from outbox_operator.shared.rights import without_a_right

WHY = "secrets is forbidden"


def test_it_is_shown_and_nothing_else_changes() -> None:
    around = seen(pod(), deployment=deployment())
    before = decide_status(outbox_relay(), around, 1, None, NOW).conditions
    after = without_a_right(RELAY, before, 2, WHY, NOW)
    found = {c.type: c for c in after}
    assert (found["Degraded"].status, found["Degraded"].reason) == ("True", "RightMissing")
    assert found["Stalled"].status == "True"
    assert found["Reconciling"].status == "False"
    assert WHY in found["Degraded"].message
    assert found["Ready"] == next(c for c in before if c.type == "Ready")
    assert without_a_right(RELAY, after, 2, WHY, NOW) == after


@pytest.mark.parametrize("kind", CUSTOM_KINDS.values(), ids=lambda kind: kind.name)
def test_every_kind_can_show_it(kind: CustomKind) -> None:
    assert {RECONCILING, STALLED} <= {*kind.conditions}
    assert STALLED in kind.problems
    assert {*kind.problems} <= {*kind.conditions}
    after = without_a_right(kind, (), 1, WHY, NOW)
    assert {c.type for c in after if c.status == "True"} == {*kind.problems}

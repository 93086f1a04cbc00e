"""Conditions: how long they have been as they are."""

from datetime import UTC, datetime

from outbox_core.contract.reasons import ProcessReason
from outbox_operator.kinds import RelayCondition
from outbox_operator.shared.conditions import Condition, carried_over
from outbox_operator.shared.reasons import Reason

MORNING = datetime(2026, 6, 1, 8, tzinfo=UTC)
NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)


def ready(
    status: str, at: datetime, reason: Reason | ProcessReason = Reason.AS_EXPECTED
) -> Condition:
    return Condition.model_validate(
        {
            "type": RelayCondition.READY,
            "status": status,
            "reason": reason,
            "message": "so it is",
            "lastTransitionTime": at,
        }
    )


def test_what_stays_as_it_was_keeps_its_time() -> None:
    (now,) = carried_over([ready("True", MORNING)], [ready("True", NOON)])
    assert now.last_transition_time == MORNING


def test_another_reason_is_no_transition() -> None:
    before = ready("False", MORNING, ProcessReason.STORE_UNREACHABLE)
    (now,) = carried_over([before], [ready("False", NOON, ProcessReason.BROKER_UNREACHABLE)])
    assert (now.last_transition_time, now.reason) == (MORNING, ProcessReason.BROKER_UNREACHABLE)


def test_what_changed_has_the_new_time() -> None:
    (now,) = carried_over([ready("True", MORNING)], [ready("False", NOON)])
    assert now.last_transition_time == NOON


def test_what_was_not_there_has_the_new_time() -> None:
    assert carried_over([], [ready("True", NOON)]) == (ready("True", NOON),)

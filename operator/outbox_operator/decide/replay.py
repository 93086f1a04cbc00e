"""The status of a replay. This version does not replay yet, and says so."""

from datetime import datetime

from outbox_operator.resources.conditions import (
    Condition,
    Reason,
    ReplayCondition,
    carried_over,
)
from outbox_operator.resources.replay import OutboxReplay, ReplayStatus

MESSAGE = (
    "this version of the operator does not replay yet: bring single events back with "
    "`outbox-relay replay`, or wait for the next version, which will take up this resource"
)


def decide_replay(replay: OutboxReplay, now: datetime) -> ReplayStatus:
    accepted = Condition(
        type=ReplayCondition.ACCEPTED,
        status="False",
        reason=Reason.NOT_SUPPORTED,
        message=MESSAGE,
        observed_generation=replay.metadata.generation,
        last_transition_time=now.replace(microsecond=0),
    )
    return ReplayStatus(
        observed_generation=replay.metadata.generation,
        phase="Pending",
        conditions=carried_over(replay.status.conditions, [accepted]),
        message=MESSAGE,
    )

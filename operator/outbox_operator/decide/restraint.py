"""Restraint: the first reason for which the operator does less for a resource than it could."""

from datetime import datetime

from outbox_operator.decide.forbidden import what_is_forbidden
from outbox_operator.decide.pausing import what_pauses
from outbox_operator.decide.rivals import Rivalry, what_rivals_restrain
from outbox_operator.resources.relay import OutboxRelay
from outbox_operator.resources.replay import OutboxReplay
from outbox_operator.seen import Restraint
from outbox_operator.settings import OperatorSettings


def first_restraint(
    resource: OutboxRelay | OutboxReplay,
    rivalry: Rivalry,
    operator: OperatorSettings,
    now: datetime,
) -> Restraint | None:
    """What somebody asked for comes first, then what a person must put right."""
    return (
        what_pauses(resource)
        or what_is_forbidden(resource, operator)
        or what_rivals_restrain(rivalry, now)
    )

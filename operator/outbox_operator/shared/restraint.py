"""Restraint: the first reason why the operator does less for a resource than it could."""

from datetime import datetime

from outbox_operator.settings import OperatorSettings
from outbox_operator.shared.forbidden import what_is_forbidden
from outbox_operator.shared.managed import Managed
from outbox_operator.shared.pausing import what_pauses
from outbox_operator.shared.rivals import Rivalry, what_rivals_restrain
from outbox_operator.shared.seen import Restraint


def first_restraint(
    resource: Managed,
    rivalry: Rivalry,
    operator: OperatorSettings,
    now: datetime,
) -> Restraint | None:
    """What somebody requested comes first, then what a person must fix."""
    return (
        what_pauses(resource)
        or what_is_forbidden(resource, operator)
        or what_rivals_restrain(rivalry, now)
    )

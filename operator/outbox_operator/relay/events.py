"""
Events of a relay: what differs from what was announced before.

So a notice that was held back is not lost: it is announced later if it still applies, and the last
Event is never about a problem that is over.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Self

from outbox_operator.kinds import RelayCondition
from outbox_operator.relay.decide.autoscaling import Scale
from outbox_operator.relay.decide.backlog import dead_events
from outbox_operator.relay.spec.resource import RelayStatus
from outbox_operator.shared.conditions import Condition
from outbox_operator.shared.notices import Notice, is_quiet
from outbox_operator.shared.reasons import EventReason, Reason


@dataclass(frozen=True)
class Announced:
    """What was announced about a relay."""

    at: Mapping[str, datetime] = field(default_factory=dict)
    """When each warning was announced last."""
    trouble: str | None = None
    """The reason that was announced, and whose end was not announced yet."""
    dead: int = 0
    paused: bool = False
    egress_open: bool = False

    @classmethod
    def of(cls, status: RelayStatus) -> Self:
        """What a previous operator announced, according to the status it wrote."""
        trouble = _holds(status, RelayCondition.DEGRADED)
        return cls(
            trouble=trouble.reason if trouble else None,
            dead=status.backlog.dead if status.backlog else 0,
            paused=_holds(status, RelayCondition.PAUSED) is not None,
            egress_open=_open_egress(status) is not None,
        )


def decide_notices(
    before: Announced,
    status: RelayStatus,
    current: int | None,
    replicas: int,
    scale: Scale | None,
    now: datetime,
) -> tuple[list[Notice], Announced]:
    """What to announce now, and what has been announced after that. `current` is the number that
    the Deployment requested before."""
    notices = [
        *_scaled(current, replicas, scale),
        *_paused(before, status),
        *_trouble(before, status, now),
        *_dead(before, status, now),
        *_egress(before, status, now),
    ]
    warned = {n.reason: now for n in notices if n.warning}
    trouble = _holds(status, RelayCondition.DEGRADED)
    known = before.trouble if trouble else None  # a recovery is announced at once
    if trouble and trouble.reason in warned:
        known = trouble.reason
    dead = status.backlog.dead if status.backlog else before.dead
    return notices, Announced(
        at={**before.at, **warned},
        trouble=known,
        dead=dead if Reason.DEAD_LETTERS in warned else min(dead, before.dead),
        paused=_holds(status, RelayCondition.PAUSED) is not None,
        # Trouble hides it, and does not end it.
        egress_open=Reason.EGRESS_OPEN in warned
        or (before.egress_open and (trouble is not None or _open_egress(status) is not None)),
    )


def _holds(status: RelayStatus, kind: RelayCondition) -> Condition | None:
    return next((c for c in status.conditions if c.type == kind and c.status == "True"), None)


def _open_egress(status: RelayStatus) -> Condition | None:
    return next((c for c in status.conditions if c.reason == Reason.EGRESS_OPEN), None)


def _scaled(current: int | None, replicas: int, scale: Scale | None) -> list[Notice]:
    if current is None or current == replicas:
        return []
    why = f": {scale.message}" if scale else ""
    return [Notice(EventReason.SCALED, f"from {current} to {replicas} pods{why}", always=True)]


def _paused(before: Announced, status: RelayStatus) -> list[Notice]:
    paused = _holds(status, RelayCondition.PAUSED)
    if before.paused == (paused is not None):
        return []
    if paused:
        return [Notice(Reason.PAUSED, paused.message, always=True)]
    return [Notice(EventReason.RESUMED, "events are published again", always=True)]


def _trouble(before: Announced, status: RelayStatus, now: datetime) -> list[Notice]:
    trouble = _holds(status, RelayCondition.DEGRADED)
    if trouble is None:
        return (
            [Notice(EventReason.RECOVERED, f"from {before.trouble}", always=True)]
            if before.trouble
            else []
        )
    if trouble.reason == before.trouble or is_quiet(trouble.reason, before.at, now):
        return []
    return [Notice(trouble.reason, trouble.message, warning=True)]


def _dead(before: Announced, status: RelayStatus, now: datetime) -> list[Notice]:
    backlog = status.backlog
    if backlog is None or backlog.dead <= before.dead:
        return []
    if is_quiet(Reason.DEAD_LETTERS, before.at, now):
        return []
    text = dead_events(backlog, status.top_errors)
    return [Notice(Reason.DEAD_LETTERS, text, warning=True)]


def _egress(before: Announced, status: RelayStatus, now: datetime) -> list[Notice]:
    found = _open_egress(status)
    if found is None or before.egress_open or is_quiet(Reason.EGRESS_OPEN, before.at, now):
        return []
    return [Notice(Reason.EGRESS_OPEN, found.message, warning=True)]

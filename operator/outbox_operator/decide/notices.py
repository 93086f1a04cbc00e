"""
Notices: what people want to hear of as an Event, told when it changes.

Damping is here too: what comes back again and again is told once in a while. Of a relay what is
told is what differs from what people have heard: so what was damped is not lost, but told later if
it still holds, and the last Event is never about something that is over.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Self

from outbox_operator.decide.autoscaling import Scale
from outbox_operator.resources.conditions import Condition, Reason, RelayCondition
from outbox_operator.resources.relay import RelayStatus

QUIET = timedelta(minutes=5)
"""How long the same is not told again."""


@dataclass(frozen=True)
class Notice:
    reason: str
    message: str
    warning: bool = False
    always: bool = False
    """Every time, however often it comes."""


@dataclass(frozen=True)
class Told:
    """What people have heard of a relay."""

    at: Mapping[str, datetime] = field(default_factory=dict)
    """When each warning was told last."""
    trouble: str | None = None
    """The reason that was told, and whose end was not."""
    dead: int = 0
    paused: bool = False

    @classmethod
    def of(cls, status: RelayStatus) -> Self:
        """By an operator that ran before this one: what its status says it has told."""
        trouble = _holds(status, RelayCondition.DEGRADED)
        return cls(
            trouble=trouble.reason if trouble else None,
            dead=status.backlog.dead if status.backlog else 0,
            paused=_holds(status, RelayCondition.PAUSED) is not None,
        )

    def is_quiet(self, reason: str, now: datetime) -> bool:
        return reason in self.at and now - self.at[reason] < QUIET


def decide_notices(
    told: Told,
    status: RelayStatus,
    asked: int | None,
    replicas: int,
    scale: Scale | None,
    now: datetime,
) -> tuple[list[Notice], Told]:
    """What is to be told now, and what people will have heard then. `asked` is what the Deployment
    asked for before."""
    notices = [
        *_scaled(asked, replicas, scale),
        *_paused(told, status),
        *_trouble(told, status, now),
        *_dead(told, status, now),
    ]
    warned = {n.reason: now for n in notices if n.warning}
    trouble = _holds(status, RelayCondition.DEGRADED)
    known = told.trouble if trouble else None  # that it is over is told at once
    if trouble and trouble.reason in warned:
        known = trouble.reason
    dead = status.backlog.dead if status.backlog else told.dead
    return notices, Told(
        at={**told.at, **warned},
        trouble=known,
        dead=dead if Reason.DEAD_LETTERS in warned else min(dead, told.dead),
        paused=_holds(status, RelayCondition.PAUSED) is not None,
    )


def unknown_fields_notice(paths: Sequence[str]) -> Notice | None:
    """Of a resource that newer definitions than ours have let through."""
    if not paths:
        return None
    message = f"ignored, because this operator does not know it: {', '.join(paths)}"
    return Notice("UnknownField", f"{message}; upgrade the operator or remove it", warning=True)


def damped(
    notices: list[Notice], told: Mapping[str, datetime], now: datetime
) -> tuple[list[Notice], dict[str, datetime]]:
    """Those that are not a repetition, and when each reason was told last."""
    recent = {reason: at for reason, at in told.items() if now - at < QUIET}
    fresh = [n for n in notices if n.always or n.reason not in recent]
    return fresh, {**recent, **{n.reason: now for n in fresh}}


def _holds(status: RelayStatus, kind: RelayCondition) -> Condition | None:
    return next((c for c in status.conditions if c.type == kind and c.status == "True"), None)


def _scaled(asked: int | None, replicas: int, scale: Scale | None) -> list[Notice]:
    if asked is None or asked == replicas:
        return []
    why = f": {scale.message}" if scale else ""
    return [Notice("Scaled", f"from {asked} to {replicas} pods{why}", always=True)]


def _paused(told: Told, status: RelayStatus) -> list[Notice]:
    paused = _holds(status, RelayCondition.PAUSED)
    if told.paused == (paused is not None):
        return []
    if paused:
        return [Notice("Paused", paused.message, always=True)]
    return [Notice("Resumed", "events go out again", always=True)]


def _trouble(told: Told, status: RelayStatus, now: datetime) -> list[Notice]:
    trouble = _holds(status, RelayCondition.DEGRADED)
    if trouble is None:
        return [Notice("Recovered", f"from {told.trouble}", always=True)] if told.trouble else []
    if trouble.reason == told.trouble or told.is_quiet(trouble.reason, now):
        return []
    return [Notice(trouble.reason, trouble.message, warning=True)]


def _dead(told: Told, status: RelayStatus, now: datetime) -> list[Notice]:
    dead = status.backlog.dead if status.backlog else 0
    if dead <= told.dead or told.is_quiet(Reason.DEAD_LETTERS, now):
        return []
    most = f", most for: {status.top_errors[0].text}" if status.top_errors else ""
    return [Notice(Reason.DEAD_LETTERS, f"{dead} events are dead{most}", warning=True)]

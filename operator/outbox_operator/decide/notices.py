"""
Notices: what people want to hear of as an Event, told when it changes.

Damping is here too: what comes back again and again is told once in a while.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

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


def decide_notices(
    before: RelayStatus, after: RelayStatus, asked: int | None, replicas: int, scale: Scale | None
) -> list[Notice]:
    """`asked` is what the Deployment asked for before."""
    told: list[Notice] = []
    if asked is not None and asked != replicas:
        why = f": {scale.message}" if scale else ""
        told.append(Notice("Scaled", f"from {asked} to {replicas} pods{why}", always=True))
    old, new = _by_type(before), _by_type(after)
    told += _switched(old, new, RelayCondition.PAUSED, "Paused", "Resumed")
    told += _trouble(old.get(RelayCondition.DEGRADED), new.get(RelayCondition.DEGRADED))
    told += _dead(before, after)
    return told


def damped(
    notices: list[Notice], told: Mapping[str, datetime], now: datetime
) -> tuple[list[Notice], dict[str, datetime]]:
    """Those that are not a repetition, and when each reason was told last."""
    recent = {reason: at for reason, at in told.items() if now - at < QUIET}
    fresh = [n for n in notices if n.always or n.reason not in recent]
    return fresh, {**recent, **{n.reason: now for n in fresh}}


def _by_type(status: RelayStatus) -> dict[str, Condition]:
    return {c.type: c for c in status.conditions}


def _switched(
    old: Mapping[str, Condition], new: Mapping[str, Condition], kind: str, on: str, off: str
) -> list[Notice]:
    was = kind in old and old[kind].status == "True"
    now_is = kind in new and new[kind].status == "True"
    if was == now_is:
        return []
    if now_is:
        return [Notice(on, new[kind].message, always=True)]
    return [Notice(off, "events go out again")]


def _trouble(old: Condition | None, new: Condition | None) -> list[Notice]:
    was = old is not None and old.status == "True"
    if new is not None and new.status == "True":
        if was and old is not None and old.reason == new.reason:
            return []
        return [Notice(new.reason, new.message, warning=True)]
    if was and old is not None:
        return [Notice("Recovered", f"from {old.reason}")]
    return []


def _dead(before: RelayStatus, after: RelayStatus) -> list[Notice]:
    had = before.backlog.dead if before.backlog else 0
    has = after.backlog.dead if after.backlog else 0
    if has <= had:
        return []
    most = f", most for: {after.top_errors[0].text}" if after.top_errors else ""
    return [Notice(Reason.DEAD_LETTERS, f"{has} events are dead{most}", warning=True)]

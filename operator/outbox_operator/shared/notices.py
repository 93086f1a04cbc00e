"""
Notices: what people are shown as an Event, and how often.

The `events` module of each kind returns them, and the writer turns them into Events. A notice that
keeps recurring is repeated only once in a while.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from outbox_operator.shared.objects import ignored_fields
from outbox_operator.shared.reasons import EventReason

QUIET_TIME = timedelta(minutes=5)
"""How long a reason is not announced again."""


@dataclass(frozen=True)
class Notice:
    reason: str
    message: str
    warning: bool = False
    always: bool = False
    """Announced every time, however often it recurs."""


def unknown_fields_notice(paths: Sequence[str]) -> Notice | None:
    """For a resource that CRDs newer than this operator have accepted."""
    if not paths:
        return None
    message = f"{ignored_fields(paths)}; upgrade the operator or remove it"
    return Notice(EventReason.UNKNOWN_FIELD, message, warning=True)


def damped(
    notices: list[Notice], announced: Mapping[str, datetime], now: datetime
) -> tuple[list[Notice], dict[str, datetime]]:
    """Notices that are no repetition, and when each reason was announced last."""
    recent = {reason: at for reason, at in announced.items() if now - at < QUIET_TIME}
    fresh = [n for n in notices if n.always or n.reason not in recent]
    return fresh, {**recent, **{n.reason: now for n in fresh}}


def is_quiet(reason: str, announced: Mapping[str, datetime], now: datetime) -> bool:
    """Whether the reason was announced too recently to be repeated."""
    return reason in announced and now - announced[reason] < QUIET_TIME

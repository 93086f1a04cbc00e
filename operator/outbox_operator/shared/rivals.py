"""
Two operators on one resource: each notices the other by the mark on the children it writes.

An operator that finds another's mark takes over once: that is an upgrade under another name, or a
reinstall. If its own mark is overwritten soon after, the other operator is alive, and both would
keep writing: this one backs off, shows why, and tries once more later. The other one learns of it
from the status, and shows the same message, so that neither overwrites what the other reports. What
a process remembers of its writes is a guess: after a restart it takes over once more, and the same
follows.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from outbox_operator.shared.conditions import Condition
from outbox_operator.shared.marks import OPERATOR, annotation
from outbox_operator.shared.objects import Body
from outbox_operator.shared.reasons import Reason
from outbox_operator.shared.seen import ChildKey, Ends, Restraint, Written, is_older

BACK_OFF_TIME = timedelta(minutes=10)
"""If another's mark appears this soon after our own write, the other operator is alive. We then
back off for the same time."""
SHOWN_TIME = timedelta(minutes=15)
"""How long the rivalry is shown after the last sign of the other operator. Longer than
BACK_OFF_TIME, so that it does not come and go while one of the two tries again."""


@dataclass(frozen=True)
class Rivalry:
    """What is known of another operator on the same resource."""

    message: str | None = None
    """What is shown; None: there is no other operator."""
    sign: datetime | None = None
    """When the other operator was last noticed."""
    backs_off_until: datetime | None = None
    """Nothing is written before this time."""
    forgotten: datetime | None = None
    """Our own writes before this time no longer count."""
    suspected: datetime | None = None
    """When a single child had another's mark: `kubectl rollout undo`, or a manifest that a person
    saved, restores an old mark. An operator that is alive writes it again."""

    def backs_off(self, now: datetime) -> bool:
        return self.backs_off_until is not None and now < self.backs_off_until


def judge_rivals(
    before: Rivalry,
    identity: str,
    children: Mapping[ChildKey, Body],
    written: Mapping[ChildKey, Written],
    reported: Iterable[Condition],
    now: datetime,
) -> Rivalry:
    """`written`: by this process. `reported`: the status, which either operator may have
    written."""
    if before.backs_off(now):
        return before
    undone = [
        (other, now - mine.at < BACK_OFF_TIME)
        for key, body in children.items()
        if (other := annotation(body, OPERATOR)) not in (None, identity)
        and (mine := written.get(key)) is not None
        and (before.forgotten is None or mine.at > before.forgotten)
        and is_newer(body, mine)
    ]
    signs = [other for other, soon in undone if soon and other is not None]
    suspected = before.suspected is not None and now - before.suspected < BACK_OFF_TIME
    if signs and (suspected or before.message is not None or len(signs) > 1):
        return Rivalry(rivals_message(identity, signs[0]), now, now + BACK_OFF_TIME, now)
    if signs:
        before = replace(before, suspected=now)
    if before.message is None:
        shown = next((c.message for c in reported if is_about(c, identity)), None)
        return replace(before, message=shown, sign=now if shown else None)
    if undone:
        return replace(before, sign=now)
    if before.sign is None or now - before.sign >= SHOWN_TIME:
        return Rivalry(suspected=before.suspected)
    return before


def is_newer(body: Body, mine: Written) -> bool:
    """Whether it was written after our own write. Otherwise the watch has not shown that yet."""
    version = body["metadata"].get("resourceVersion", "")
    return version != mine.version and not is_older(body["metadata"], mine.version)


def is_about(condition: Condition, identity: str) -> bool:
    named = re.split(r"[ ,]+", condition.message)
    return condition.reason == Reason.OTHER_OPERATOR and identity in named


def rivals_message(one: str, other: str) -> str:
    """The same message, whichever operator reports it."""
    first, second = sorted((one, other))
    return (
        f"two operators manage this resource, {first} and {second}, and each undoes what the "
        "other one writes; what runs keeps running. Let them watch different namespaces (the "
        "chart's watch.namespaces), or uninstall one of them; this condition then clears within "
        f"{int(SHOWN_TIME.total_seconds() // 60)} minutes"
    )


def what_rivals_restrain(rivalry: Rivalry, now: datetime) -> Restraint | None:
    if rivalry.message is None:
        return None
    return Restraint(
        Ends.BY_A_PERSON,
        Reason.OTHER_OPERATOR,
        rivalry.message,
        blocks_writes=rivalry.backs_off(now),
    )

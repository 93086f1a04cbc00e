"""
The annotation that pauses reconciliation of one resource: its children are left as they are.

Not to be confused with `spec.paused`, which stops the relay's pods from publishing. A deletion is
still carried out: a person who deletes a resource does not want it to stay.
"""

from outbox_operator.kinds import CUSTOM_KINDS
from outbox_operator.shared.conditions import Condition
from outbox_operator.shared.managed import Managed
from outbox_operator.shared.notices import Notice
from outbox_operator.shared.reasons import EventReason, Reason
from outbox_operator.shared.seen import Ends, Restraint

RECONCILE = "outbox.dev/reconcile"
PAUSED = "paused"


def is_paused(resource: Managed) -> bool:
    meta = resource.metadata
    return meta.deletion_timestamp is None and meta.annotations.get(RECONCILE) == PAUSED


def what_pauses(resource: Managed) -> Restraint | None:
    if not is_paused(resource):
        return None
    meta, short = resource.metadata, CUSTOM_KINDS[resource.kind].short
    return Restraint(
        Ends.ON_REQUEST,
        Reason.RECONCILE_PAUSED,
        f"the annotation {RECONCILE}: {PAUSED} is set: the operator changes nothing here, and only "
        f"reports; what runs keeps running. To resume: kubectl annotate {short} "
        f"-n {meta.namespace} {meta.name} {RECONCILE}-",
    )


def shows_paused(conditions: tuple[Condition, ...]) -> bool:
    """Whether a status shows the pause; an earlier operator may have written it."""
    return any(c.reason == Reason.RECONCILE_PAUSED for c in conditions)


def pause_notices(resource: Managed, was_paused: bool, unknown_before: str | None) -> list[Notice]:
    """`unknown_before`: the unknown value that was already announced."""
    paused = is_paused(resource)
    found: list[Notice] = []
    if paused and not was_paused:
        text = f"the operator changes nothing as long as the annotation {RECONCILE} is set"
        found.append(Notice(Reason.RECONCILE_PAUSED, text, always=True))
    if was_paused and not paused:
        found.append(
            Notice(EventReason.RECONCILE_RESUMED, "the operator makes changes again", always=True)
        )
    if (value := unknown_value(resource)) is not None and value != unknown_before:
        text = (
            f"the annotation {RECONCILE} has the value {value!r}, which has no meaning: "
            f"reconciliation is not paused. The only value with a meaning is {PAUSED!r}"
        )
        found.append(Notice(EventReason.ANNOTATION_UNKNOWN, text, warning=True, always=True))
    return found


def unknown_value(resource: Managed) -> str | None:
    value = resource.metadata.annotations.get(RECONCILE)
    return None if value == PAUSED else value

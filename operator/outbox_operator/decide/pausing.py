"""
The annotation that pauses reconciliation of one resource: its children are left as they are.

Not to be confused with `spec.paused`, which stops the relay's pods from publishing. A deletion is
carried out all the same: whoever deletes a resource does not mean it to stay.
"""

from outbox_operator.decide.notices import Notice
from outbox_operator.resources.conditions import Condition, Reason, RelayCondition
from outbox_operator.resources.objects import Resource
from outbox_operator.resources.replay import OutboxReplay
from outbox_operator.seen import Restraint

RECONCILE = "outbox.dev/reconcile"
PAUSED = "paused"

SHORT = {"OutboxRelay": "obr", "OutboxReplay": "obrp"}


def is_paused(resource: Resource) -> bool:
    meta = resource.metadata
    return meta.deletion_timestamp is None and meta.annotations.get(RECONCILE) == PAUSED


def as_left_alone(replay: OutboxReplay) -> OutboxReplay:
    """As it is judged while it is paused: nobody ends an attempt that runs, or starts one after it
    was suspended, whatever `suspend` says since."""
    spec = replay.spec.model_copy(update={"suspend": replay.status.phase == "Suspended"})
    return replay.model_copy(update={"spec": spec})


def what_pauses(resource: Resource) -> Restraint | None:
    if not is_paused(resource):
        return None
    meta = resource.metadata
    return Restraint(
        RelayCondition.PROGRESSING,
        "False",
        Reason.RECONCILE_PAUSED,
        f"by the annotation {RECONCILE}: {PAUSED} the operator changes nothing here, and only "
        f"reports; what runs goes on. To resume: kubectl annotate {SHORT[resource.kind]} "
        f"-n {meta.namespace} {meta.name} {RECONCILE}-",
    )


def says_paused(conditions: tuple[Condition, ...]) -> bool:
    """A status, such as one that an operator before this one wrote."""
    return any(c.reason == Reason.RECONCILE_PAUSED for c in conditions)


def pause_notices(resource: Resource, was_paused: bool, unknown_before: str | None) -> list[Notice]:
    """`unknown_before`: the value that people were already told of."""
    paused = is_paused(resource)
    told: list[Notice] = []
    if paused and not was_paused:
        text = f"nothing is changed as long as the annotation {RECONCILE} is there"
        told.append(Notice(Reason.RECONCILE_PAUSED, text, always=True))
    if was_paused and not paused:
        told.append(Notice("ReconcileResumed", "children are kept as asked for", always=True))
    if (value := unknown_value(resource)) is not None and value != unknown_before:
        text = (
            f"the annotation {RECONCILE} has the value {value!r}, which means nothing; the only "
            f"one that does is {PAUSED!r}: reconciliation is not paused"
        )
        told.append(Notice("AnnotationUnknown", text, warning=True, always=True))
    return told


def unknown_value(resource: Resource) -> str | None:
    value = resource.metadata.annotations.get(RECONCILE)
    return None if value == PAUSED else value

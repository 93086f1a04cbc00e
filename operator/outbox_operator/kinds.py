"""
The kinds of custom resources: names and conditions of each, and what shared code asks about it.

A new kind is an entry in CUSTOM_KINDS and a folder of its own: settings, metrics, watches, names of
children and the texts that list the kinds are derived from the table.
"""

from dataclasses import dataclass
from enum import StrEnum

FORBIDDABLE = ("image", "serviceAccountName", "env", "volumes", "podSettings")
"""What an installation may forbid in any resource that has pods, by its name in the chart's
`policy.<policy>.forbid`; `shared.forbidden` knows the fields."""


# Conditions ----------------------------------------------------------------------------------
#
# People and scripts rely on types (`kubectl wait --for=condition=Ready`): they are added, never
# renamed.

RECONCILING, STALLED = "Reconciling", "Stalled"
"""Conditions that every kind has: tools such as Flux and Helm read them in any resource
(kstatus)."""


class RelayCondition(StrEnum):
    """Of an OutboxRelay."""

    READY = "Ready"
    """At least one pod runs and reaches both database and broker. Also True while paused, if the
    pod that watches is ready."""
    PROGRESSING = "Progressing"
    """A change is being carried out: a rollout, a scaling, a migration."""
    DEGRADED = "Degraded"
    """Something needs a person; the message names the cure."""
    BACKLOG_HEALTHY = "BacklogHealthy"
    """Events leave about as fast as they arrive, and none is dead. Unknown while no pod
    reports."""
    PAUSED = "Paused"
    """Nothing is claimed, because the resource is paused."""
    RECONCILING = "Reconciling"
    """The last change has not reached every pod yet, and is being carried out. This condition and
    the next are for tools that read any resource this way, such as Flux and Helm (kstatus)."""
    STALLED = "Stalled"
    """The last change cannot be carried out until a person does something."""


class ReplayCondition(StrEnum):
    """Of an OutboxReplay."""

    COMPLETE = "Complete"
    """Done: everything that the request selects was replayed. A dry run completes too."""
    FAILED = "Failed"
    """Given up, for the reason in the message; what was requeued stays requeued."""
    SUSPENDED = "Suspended"
    """Stopped by `suspend`; continues where it stopped."""
    ACCEPTED = "Accepted"
    """The request is valid: the relay exists, and there is an engine to run it."""
    RECONCILING = "Reconciling"
    """It waits, or is at work. For the same tools as a relay's."""
    STALLED = "Stalled"
    """It failed, or cannot start until a person does something."""


# Kinds ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CustomKind:
    name: str
    plural: str
    short: str
    """kubectl's short name."""
    app: str
    """The label app.kubernetes.io/name of its children, so that a relay's selectors find no pod of
    a replay with the same name."""
    role: str
    """The role of the children that all its pods share, such as the ServiceAccount."""
    policy: str
    """Its name in the chart's values: `policy.<policy>.forbid`."""
    editable: bool
    """Whether a person can change the spec of an existing resource."""
    conditions: type[StrEnum]
    problems: tuple[str, ...]
    """The conditions that are True when something needs a person; Stalled is one of them."""
    forbiddable: tuple[str, ...] = FORBIDDABLE
    """What `policy.<policy>.forbid` may name."""

    @property
    def forbid_setting(self) -> str:
        """The operator's setting with that list: the chart sets OUTBOX_OPERATOR_RELAY_FORBID."""
        return f"{self.role}_forbid"


RELAY = CustomKind(
    name="OutboxRelay",
    plural="outboxrelays",
    short="obr",
    app="outbox-relay",
    role="relay",
    policy="relays",
    editable=True,
    conditions=RelayCondition,
    problems=(RelayCondition.DEGRADED, RelayCondition.STALLED),
)
REPLAY = CustomKind(
    name="OutboxReplay",
    plural="outboxreplays",
    short="obrp",
    app="outbox-replay",
    role="replay",
    policy="replays",
    editable=False,
    conditions=ReplayCondition,
    problems=(ReplayCondition.STALLED,),
    forbiddable=(*FORBIDDABLE, "sparkConf"),
)
CUSTOM_KINDS = {kind.name: kind for kind in (RELAY, REPLAY)}


def all_kinds() -> str:
    """For people: `OutboxRelay and OutboxReplay`."""
    *others, last = CUSTOM_KINDS
    return f"{', '.join(others)} and {last}" if others else last

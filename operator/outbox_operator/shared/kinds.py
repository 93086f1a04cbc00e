"""
The custom resources: the words of each kind, and what shared code may rely on in any of them.

A new kind is an entry here and a folder of its own; nothing else in `shared` names a kind.
"""

from dataclasses import dataclass
from typing import Any, Literal, Protocol

from outbox_operator.shared.conditions import Condition
from outbox_operator.shared.objects import Metadata
from outbox_operator.shared.pod_settings import PodSettings


@dataclass(frozen=True)
class CustomKind:
    name: str
    plural: str
    short: str
    """As kubectl takes it."""
    app: str
    """The label app.kubernetes.io/name of its children: the selectors of a relay find no pod of a
    replay that has the same name."""
    role: str
    """Of the children that all its pods share, such as the ServiceAccount."""
    policy: str
    """In the chart: `policy.<policy>.forbid`."""
    editable: bool
    """Whether a person can change the spec of one that exists."""


RELAY = CustomKind(
    name="OutboxRelay",
    plural="outboxrelays",
    short="obr",
    app="outbox-relay",
    role="relay",
    policy="relays",
    editable=True,
)
REPLAY = CustomKind(
    name="OutboxReplay",
    plural="outboxreplays",
    short="obrp",
    app="outbox-replay",
    role="replay",
    policy="replays",
    editable=False,
)
CUSTOM_KINDS = {kind.name: kind for kind in (RELAY, REPLAY)}


class ManagedSpec(Protocol):
    @property
    def pod(self) -> PodSettings: ...

    def model_dump(
        self, *, mode: Literal["json"], by_alias: bool, exclude_defaults: bool
    ) -> dict[str, Any]: ...


class ManagedStatus(Protocol):
    @property
    def conditions(self) -> tuple[Condition, ...]: ...


class Managed(Protocol):
    """A resource of any kind, whose spec could be read."""

    @property
    def kind(self) -> str: ...

    @property
    def metadata(self) -> Metadata: ...

    @property
    def spec(self) -> ManagedSpec: ...

    @property
    def status(self) -> ManagedStatus: ...

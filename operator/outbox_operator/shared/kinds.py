"""
The custom resources: the names of each kind, and what shared code may rely on in all of them.

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
    """A resource of any kind whose spec is valid."""

    @property
    def kind(self) -> str: ...

    @property
    def metadata(self) -> Metadata: ...

    @property
    def spec(self) -> ManagedSpec: ...

    @property
    def status(self) -> ManagedStatus: ...

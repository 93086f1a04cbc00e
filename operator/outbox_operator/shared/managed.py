"""
What shared code may rely on in a resource of any kind.

Nothing in `shared` names a kind: what differs from kind to kind is in `outbox_operator.kinds`.
"""

from typing import Any, Literal, Protocol

from outbox_operator.shared.conditions import Condition
from outbox_operator.shared.objects import Metadata
from outbox_operator.shared.pod_settings import PodSettings


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

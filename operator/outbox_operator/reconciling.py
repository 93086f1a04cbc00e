"""
What the reconcilers of all kinds have in common: how `dispatch` calls them, what they remember
about a resource from one reconcile to the next, and how they report.

Each kind derives its own from `KindReconciler`, in its folder. What is remembered only saves work
or repetition: after a restart the operator finds everything again in the cluster.
"""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Generic, TypeVar

from outbox_operator.kinds import CustomKind
from outbox_operator.kube.api import ApiError, Unreachable
from outbox_operator.kube.writer import Writer
from outbox_operator.settings import OperatorSettings
from outbox_operator.shared.conditions import Condition
from outbox_operator.shared.managed import Managed
from outbox_operator.shared.notices import Notice
from outbox_operator.shared.objects import Body, Key, Resource, Status, without_spec
from outbox_operator.shared.restraining import Restrainer
from outbox_operator.shared.rights import without_a_right
from outbox_operator.shared.seen import Restraint, Surroundings
from outbox_operator.shared.unknown_fields import UnknownFields

Memory = TypeVar("Memory")
"""What a kind remembers about one resource."""


@dataclass(frozen=True)
class Reconciled:
    """The result of reconciling a resource."""

    again_seconds: float | None = None
    """After how long to reconcile it again; None: only when something changes."""
    conditions: tuple[Condition, ...] | None = None
    """The conditions that were reported; None: nothing was reported."""


class KindReconciler(ABC, Generic[Memory]):
    def __init__(
        self,
        kind: CustomKind,
        settings: OperatorSettings,
        writer: Writer,
        new_memory: Callable[[], Memory],
    ) -> None:
        self._kind = kind
        self._settings = settings
        self._writer = writer
        self._new_memory = new_memory
        self._memories: dict[Key, tuple[str, Memory]] = {}
        """With the uid: another resource of the same name starts with an empty memory."""
        self._restrainer = Restrainer(settings)
        self._unknown_fields = UnknownFields()

    # Called by `dispatch` ----------------------------------------------------------------------

    @abstractmethod
    async def reconcile(self, key: Key, body: Body) -> Reconciled:
        """Bring a resource's children and status up to date, once."""

    def forget(self, key: Key) -> None:
        """The resource is gone."""
        if found := self._memories.pop(key, None):
            uid, _ = found
            self._writer.forget(uid)
            self._unknown_fields.forget(uid)
            self._restrainer.forget(uid)

    def deleted(self, key: Key, last: Body) -> bool:
        """A resource is gone; `last` is its last state. Returns whether `after_deletion` has
        something to report."""
        return False

    async def after_deletion(self, key: Key) -> None:
        """Report what `deleted` found."""

    async def lacks_right(self, body: Body, why: str) -> None:
        """The operator lacks a right that it needs to reconcile this resource: show it there."""
        meta, status = body["metadata"], body.get("status") or {}
        before = [Condition.model_validate(c) for c in status.get("conditions") or ()]
        generation, now = meta.get("generation", 0), datetime.now(UTC)
        conditions = without_a_right(self._kind, before, generation, why, now)
        shown = {**status, "conditions": [c.written() for c in conditions]}
        with contextlib.suppress(ApiError, Unreachable):  # it may be this right that is missing
            await self._writer.report(without_spec(body), shown, status)

    # Used by the kinds -------------------------------------------------------------------------

    def _memory(self, key: Key, uid: str) -> Memory:
        if key not in self._memories or self._memories[key][0] != uid:
            self._memories[key] = uid, self._new_memory()
        return self._memories[key][1]

    def _restraint(self, resource: Managed, seen: Surroundings, now: datetime) -> Restraint | None:
        written = self._writer.written(resource.metadata.uid)
        return self._restrainer.restraint(resource, seen, written, now)

    async def _report(
        self,
        resource: Resource,
        body: Body,
        status: Status,
        notices: Iterable[Notice],
        now: datetime,
    ) -> None:
        """`body` is the resource as it was seen, with its last status."""
        await self._writer.announce(resource, notices, now)
        await self._writer.report(resource, status.written(), body.get("status") or {})

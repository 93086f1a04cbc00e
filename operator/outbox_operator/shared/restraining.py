"""
Restraining: whether the operator writes the children of a resource, and how people are informed.

Called by the reconciler of each kind, and keeps its memory. `restraint` decides which restraint
applies; after a restart of the operator the cluster shows it again.
"""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from outbox_operator.settings import OperatorSettings
from outbox_operator.shared.managed import Managed
from outbox_operator.shared.marks import is_orphan
from outbox_operator.shared.notices import Notice
from outbox_operator.shared.pausing import is_paused, pause_notices, shows_paused, unknown_value
from outbox_operator.shared.restraint import first_restraint
from outbox_operator.shared.rivals import Rivalry, judge_rivals
from outbox_operator.shared.seen import ChildKey, Restraint, Surroundings, Written

log = logging.getLogger("outbox.operator")


@dataclass
class RestraintMemory:
    """Of one resource, from one reconcile to the next."""

    paused: bool
    """Whether the pause was announced."""
    unknown: str | None = None
    """The value of the annotation that was announced as unknown."""
    rivalry: Rivalry = field(default_factory=Rivalry)


class Restrainer:
    def __init__(self, settings: OperatorSettings) -> None:
        self._settings = settings
        self._memories: dict[str, RestraintMemory] = {}
        """By uid."""

    def forget(self, uid: str) -> None:
        self._memories.pop(uid, None)

    def restraint(
        self,
        resource: Managed,
        seen: Surroundings,
        written: Mapping[ChildKey, Written],
        now: datetime,
    ) -> Restraint | None:
        """`written`: the children that this process has written for the resource."""
        memory = self._of(resource)
        before = memory.rivalry
        memory.rivalry = judge_rivals(
            before,
            self._settings.identity,
            seen.children,
            written,
            resource.status.conditions,
            now,
        )
        if memory.rivalry.backs_off(now) and not before.backs_off(now):
            meta = resource.metadata
            log.warning(
                "%s %s: %s",
                resource.kind,
                meta.name,
                memory.rivalry.message,
                extra={"event": "rival", "namespace": meta.namespace, "resource": meta.name},
            )
        return first_restraint(resource, memory.rivalry, self._settings, now)

    def notices(self, resource: Managed) -> list[Notice]:
        """Reconciliation was paused or resumed: each is announced once."""
        memory = self._of(resource)
        found = pause_notices(resource, memory.paused, memory.unknown)
        memory.paused, memory.unknown = is_paused(resource), unknown_value(resource)
        return found

    def _of(self, resource: Managed) -> RestraintMemory:
        uid = resource.metadata.uid
        if uid not in self._memories:
            self._memories[uid] = RestraintMemory(shows_paused(resource.status.conditions))
        return self._memories[uid]


def adopts(
    seen: Surroundings, wanted: Iterable[Mapping[str, Any]], unwanted: Iterable[ChildKey] = ()
) -> bool:
    """Whether one of these children lost its owner, and would be written or removed."""
    keys = [*((c["kind"], c["metadata"]["name"]) for c in wanted), *unwanted]
    return any(is_orphan(live) for key in keys if (live := seen.child(*key)) is not None)

"""
Restraining: whether the operator writes the children of a resource, and what people hear of it.

Called by `reconcile` and `reconcile_replay`, and remembers for both of them. What counts is decided
in `decide.restraint`; after a restart of the operator it is found again in the cluster.
"""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from outbox_operator.children.marks import is_orphan
from outbox_operator.cluster.client import Writer
from outbox_operator.decide.notices import Notice
from outbox_operator.decide.pausing import is_paused, pause_notices, says_paused, unknown_value
from outbox_operator.decide.restraint import first_restraint
from outbox_operator.decide.rivals import Rivalry, judge_rivals
from outbox_operator.resources.relay import OutboxRelay
from outbox_operator.resources.replay import OutboxReplay
from outbox_operator.seen import ChildKey, Restraint, Surroundings
from outbox_operator.settings import OperatorSettings

log = logging.getLogger("outbox.operator")


@dataclass
class Remembered:
    """Of one resource, from look to look."""

    paused: bool
    """Whether people have heard that reconciliation is paused."""
    unknown: str | None = None
    """The value of that annotation of which they have heard that it means nothing."""
    rivalry: Rivalry = field(default_factory=Rivalry)


class Restrainer:
    def __init__(self, settings: OperatorSettings, writer: Writer) -> None:
        self._settings = settings
        self._writer = writer
        self._remembered: dict[str, Remembered] = {}
        """By uid."""

    def forget(self, uid: str) -> None:
        self._remembered.pop(uid, None)

    def restraint(
        self, resource: OutboxRelay | OutboxReplay, seen: Surroundings, now: datetime
    ) -> Restraint | None:
        remembered = self._of(resource)
        before = remembered.rivalry
        remembered.rivalry = judge_rivals(
            before,
            self._settings.identity,
            seen.children,
            self._writer.written(resource.metadata.uid),
            resource.status.conditions,
            now,
        )
        if remembered.rivalry.rests(now) and not before.rests(now):
            meta = resource.metadata
            log.warning(
                "%s %s: %s",
                resource.kind,
                meta.name,
                remembered.rivalry.message,
                extra={"event": "rival", "namespace": meta.namespace, "resource": meta.name},
            )
        return first_restraint(resource, remembered.rivalry, self._settings, now)

    def notices(self, resource: OutboxRelay | OutboxReplay) -> list[Notice]:
        """That reconciliation is paused or resumed, each once."""
        remembered = self._of(resource)
        told = pause_notices(resource, remembered.paused, remembered.unknown)
        remembered.paused, remembered.unknown = is_paused(resource), unknown_value(resource)
        return told

    def _of(self, resource: OutboxRelay | OutboxReplay) -> Remembered:
        uid = resource.metadata.uid
        if uid not in self._remembered:
            self._remembered[uid] = Remembered(says_paused(resource.status.conditions))
        return self._remembered[uid]


def adopts(
    seen: Surroundings, wanted: Iterable[Mapping[str, Any]], unwanted: Iterable[ChildKey] = ()
) -> bool:
    """Whether one of them lost its owner, and would be written or removed."""
    keys = [*((c["kind"], c["metadata"]["name"]) for c in wanted), *unwanted]
    return any(is_orphan(live) for key in keys if (live := seen.child(*key)) is not None)

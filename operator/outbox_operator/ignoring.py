"""
Ignoring: tells people that a resource has fields which this version does not know.

Called by both reconcilers with every look; each generation is told of once in the operator's life.
Not a condition: the resource works as it did before somebody installed newer definitions. After a
restart it is told again, because the operator before may have known the fields.
"""

import logging
from datetime import datetime

from outbox_operator.cluster.client import Writer
from outbox_operator.decide.notices import unknown_fields_notice
from outbox_operator.resources.objects import Resource

log = logging.getLogger("outbox.operator")


class Ignoring:
    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._told: dict[str, int] = {}
        """By uid: the generation that was told of last."""

    async def tell(self, resource: Resource, now: datetime) -> None:
        meta = resource.metadata
        notice = unknown_fields_notice(resource.unknown_fields)
        if notice is None or self._told.get(meta.uid) == meta.generation:
            return
        self._told[meta.uid] = meta.generation
        log.warning(
            "%s %s: %s",
            resource.kind,
            meta.name,
            notice.message,
            extra={"event": "ignored", "namespace": meta.namespace, "resource": meta.name},
        )
        await self._writer.tell(resource, notice.reason, notice.message, warning=True, now=now)

    def forget(self, uid: str) -> None:
        """A resource that is gone."""
        self._told.pop(uid, None)

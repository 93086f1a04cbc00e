"""
Unknown fields: announces that a resource has fields which this version does not know.

Called by the reconciler of each kind on every reconcile; each generation is announced once per
operator process. Not a condition: the resource works as it did before somebody installed newer
definitions. After a restart it is announced again, because the previous operator may have known
the fields.
"""

import logging

from outbox_operator.shared.notices import Notice, unknown_fields_notice
from outbox_operator.shared.objects import Resource

log = logging.getLogger("outbox.operator")


class UnknownFields:
    def __init__(self) -> None:
        self._announced: dict[str, int] = {}
        """By uid: the generation that was announced last."""

    def notices(self, resource: Resource) -> list[Notice]:
        meta = resource.metadata
        notice = unknown_fields_notice(resource.unknown_fields)
        if notice is None or self._announced.get(meta.uid) == meta.generation:
            return []
        self._announced[meta.uid] = meta.generation
        log.warning(
            "%s %s: %s",
            resource.kind,
            meta.name,
            notice.message,
            extra={"event": "ignored", "namespace": meta.namespace, "resource": meta.name},
        )
        return [notice]

    def forget(self, uid: str) -> None:
        """The resource is gone."""
        self._announced.pop(uid, None)

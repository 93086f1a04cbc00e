"""
Watches: which of them work. Informers and probes report here; `program` reads it, and is called
with every change.

Kinds of other operators are left out: a cluster may do without them.
"""

from collections.abc import Callable
from dataclasses import replace

from outbox_operator.kube.api import ApiError
from outbox_operator.kube.kinds import ObjectKind
from outbox_operator.kube.watch.state import Watch

Place = str | None
"""A namespace; None: all of them."""


class Watches:
    def __init__(self, changed: Callable[[Watch], None]) -> None:
        """`changed` is called whenever a watch is added, starts to work, stops working or fails
        again."""
        self._changed = changed
        self._all: dict[tuple[str, Place], Watch] = {}

    @property
    def all(self) -> list[Watch]:
        return list(self._all.values())

    def expect(self, kind: ObjectKind, place: Place) -> None:
        """Add a watch that has not started yet."""
        if kind.optional:
            return
        group = kind.api.split("/")[2] if kind.api.startswith("/apis/") else ""
        resource = f"{kind.plural}.{group}" if group else kind.plural
        self._all[kind.name, place] = Watch(kind.name, resource, place)
        self._changed(self._all[kind.name, place])

    def works(self, kind: ObjectKind, place: Place) -> None:
        before = self._all.get((kind.name, place))
        if before is not None and not before.synced:
            self._note(replace(before, synced=True, trouble=None, forbidden=False))

    def fails(self, kind: ObjectKind, place: Place, error: Exception) -> None:
        """`changed` is called every time: `program` decides how often to log it."""
        before = self._all.get((kind.name, place))
        if before is not None:
            forbidden = isinstance(error, ApiError) and error.status == 403
            self._note(replace(before, synced=False, trouble=str(error), forbidden=forbidden))

    def _note(self, watch: Watch) -> None:
        self._all[watch.kind, watch.namespace] = watch
        self._changed(watch)

"""
The relay that a replay gives events back to, as far as a replay needs to know it.

OutboxRelay implements it. The kinds do not import each other: `program` passes the relay's parser
to `gather`, and the rest of the replay uses this protocol.
"""

from collections.abc import Callable
from datetime import datetime
from typing import Protocol

from outbox_operator.shared.objects import Body, Metadata
from outbox_operator.shared.store import HasStore


class TargetStatus(Protocol):
    @property
    def observed_at(self) -> datetime | None: ...

    @property
    def ready_replicas(self) -> int | None: ...


class TargetRelay(HasStore, Protocol):
    @property
    def metadata(self) -> Metadata: ...

    @property
    def status(self) -> TargetStatus: ...

    @property
    def relay_name(self) -> str:
        """In the database."""


ParseRelay = Callable[[Body], TargetRelay]
"""Raises pydantic's ValidationError if the relay is invalid."""

"""
The selection of a replay: which events are replayed.

Part of `replay`, and of the OutboxReplay that people write. This module checks whether the
selection is consistent; the database decides what matches, and whether the regular expression is
valid.
"""

from typing import Annotated, Final, Literal

from pydantic import Field, model_validator

from outbox_core.contract.values import Settings, Time

Text = Annotated[str, Field(min_length=1, max_length=1000)]
Texts = Annotated[tuple[Text, ...], Field(min_length=1, max_length=1000)]
EventId = Annotated[
    str,
    Field(
        max_length=36,
        pattern=r"^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$",
    ),
]
EventIds = Annotated[tuple[EventId, ...], Field(min_length=1, max_length=10_000)]


NO_BOUND: Final = "name at least one of after and before"
EMPTY_RANGE: Final = "after must be earlier than before: nothing lies between"
NOT_PUBLISHED: Final = "published needs states: [PUBLISHED]: nothing else was published"
TOO_WIDE: Final = (
    "PUBLISHED alone is everything that ever went out: narrow it, for example by created or "
    'eventTypes; eventTypes: ["*"] if you mean everything'
)


class Range(Settings):
    after: Time | None = None
    """At or after this time."""
    before: Time | None = None
    """Before this time."""

    @model_validator(mode="after")
    def in_order(self) -> "Range":
        if self.after is None and self.before is None:
            raise ValueError(NO_BOUND)
        if self.after is not None and self.before is not None and self.after >= self.before:
            raise ValueError(EMPTY_RANGE)
        return self


class Aggregate(Settings):
    type: Text
    """Its type, such as `order`."""
    id: Text
    """Its id."""


class Selection(Settings):
    """An event must match every field that is set here; in a list, one item is enough."""

    states: (
        Annotated[tuple[Literal["DEAD", "PUBLISHED"], ...], Field(min_length=1, max_length=2)]
        | None
    ) = None
    """States that are replayed. Default: DEAD only. Events that already wait or are being published
    are never touched."""
    event_types: Texts | None = None
    """Patterns; `*` stands for any run of characters: `order.*`."""
    created: Range | None = None
    """When the event was stored."""
    published: Range | None = None
    """When the event was published; needs PUBLISHED in `states`."""
    ordering_keys: Texts | None = None
    """Only events of these keys."""
    aggregates: Annotated[tuple[Aggregate, ...], Field(min_length=1, max_length=1000)] | None = None
    """Only events of these aggregates."""
    tenants: Texts | None = None
    """Only events of these tenants."""
    correlation_ids: Texts | None = None
    """Only events with these correlation ids."""
    event_ids: EventIds | None = None
    """Only these events."""
    error_matches: Text | None = None
    """A PostgreSQL regular expression that the last error must match: `timed out|MSG_SIZE`."""

    @model_validator(mode="after")
    def fits(self) -> "Selection":
        states = self.states or ()
        if self.published is not None and "PUBLISHED" not in states:
            raise ValueError(NOT_PUBLISHED)
        others = self.model_fields_set - {"states"}
        if "PUBLISHED" in states and not others:
            raise ValueError(TOO_WIDE)
        return self

"""
The report: how a relay process describes itself on /status. The operator reads it.

Fields are added, never changed: processes of two versions report side by side during a rollout.
"""

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel


class ReportPart(BaseModel):
    model_config = ConfigDict(
        frozen=True, alias_generator=to_camel, populate_by_name=True, use_attribute_docstrings=True
    )


class Backlog(ReportPart):
    pending: int
    """Events that are waiting, for any reason."""
    claimed: int
    """Events that are being published."""
    dead: int
    """Events that were given up, until a person decides."""
    oldest_pending_seconds: float
    """Age of the oldest event that could be published now; 0 if there is none."""
    approximate: bool
    """Whether counts are estimated: large ones are, so that counting costs nothing."""


class Throughput(ReportPart):
    """Per second, over the last minute."""

    published: float
    """Events that the broker has acknowledged."""
    failed: float
    """Attempts that failed."""
    dead: float
    """Events that were given up."""


class Rates(Throughput):
    """The rates of this process. The relay's rates are the sum over its processes."""

    seconds: float = 0.0
    """Length of the window: less than a minute after the start, more if the report was last made
    longer ago. 0 if the process does not report it."""


class Busy(ReportPart):
    """
    How the workers of this process spent their time, in the same window as its rates, as shares: 1
    is all workers all the time. For the rest of the time they waited for events.

    While the shares add up to about 1, the process is at its limit. If most of it is `store`, it
    waits for the database, and more processes would only queue up there.
    """

    store: float
    """Claiming and finalising."""
    publish: float
    """Sending to the broker and waiting for its acknowledgements."""
    workers: int


class ParkedDestination(ReportPart):
    """A topic or endpoint that accepts nothing now, while others do. Its events wait, and use up no
    attempts."""

    name: str
    seconds: float
    """For how long so far."""
    why: str
    """The last failure."""


class TopError(ReportPart):
    error_class: str
    """Where the fault lies, and so whether another attempt helps: event, transient, destination,
    outage, crash ..."""
    code: str
    """The broker's code for it."""
    text: str
    """The text of one of these errors: others may differ in numbers and ids."""
    count: int
    """How many events have this as their last error."""


class Report(ReportPart):
    version: str
    relay: str
    claimed_by: str
    ordering: Literal["None", "Key"]
    ready: bool
    troubles: dict[str, str]
    """What keeps the process from working: store, status, broker, start, draining. Empty when
    ready."""
    reasons: dict[str, str] = Field(default_factory=dict)
    """The reason of each trouble: from `contract.reasons`, or one that a newer version added."""
    paused: bool = False
    """The relay is set to publish nothing: ready only means that the store answers."""
    breaker: Literal["closed", "open", "trial"]
    parked_destinations: int = 0
    """How many accept nothing now, as this process sees it."""
    parked: list[ParkedDestination] = Field(default_factory=list)
    """Those that have been parked for the longest, 20 at most."""
    lanes: int
    backlog: Backlog | None
    """Of the whole relay, hence the same in each of its processes. None while the store does not
    answer."""
    published: int | None = None
    """Of the whole relay: all events that the broker has acknowledged so far. Read once a minute,
    and estimated if there are many. None until it could be read."""
    rates: Rates
    busy: Busy | None = None
    """None if the process does not report it: it is paused, or of an older version."""
    top_errors: list[TopError]
    observed_at: datetime
    """When the backlog was read, by the database's clock; otherwise by this process's."""

"""
The report: what a relay process says of itself on /status. The operator reads it.

Fields are added, never changed: processes of two versions report side by side during a rollout.
"""

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel


class ReportPart(BaseModel):
    model_config = ConfigDict(
        frozen=True, alias_generator=to_camel, populate_by_name=True, use_attribute_docstrings=True
    )


class Backlog(ReportPart):
    pending: int
    """Events that wait, whatever for."""
    claimed: int
    """Events that are being published."""
    dead: int
    """Events that were given up, until somebody decides."""
    oldest_pending_seconds: float
    """Age of the oldest event that could be published now; 0 where there is none."""
    approximate: bool
    """Large counts are estimated, so that asking costs nothing."""


class Rates(ReportPart):
    """Per second, over the last minute, of this process."""

    published: float
    """Events that the broker has acknowledged."""
    failed: float
    """Attempts that failed."""
    dead: float
    """Events that were given up."""


class TopError(ReportPart):
    error_class: str
    """Whose fault it is, and so whether trying again helps: event, transient, outage, crash ..."""
    code: str
    """The broker's word for it."""
    text: str
    """What it said."""
    count: int
    """How many events failed so last."""


class Report(ReportPart):
    version: str
    relay: str
    claimed_by: str
    ordering: Literal["None", "Key"]
    ready: bool
    troubles: dict[str, str]
    """What stands in the way: store, broker, start, draining. Empty when ready."""
    breaker: Literal["closed", "open", "trial"]
    lanes: int
    backlog: Backlog | None
    """None while the store does not answer."""
    rates: Rates
    top_errors: list[TopError]
    observed_at: datetime
    """When the backlog was read, by the database's clock; else by this process's."""

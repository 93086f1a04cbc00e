"""
Bulk replays: the request, the driver's settings, and its report.

`ReplayRequest` is what people write in an OutboxReplay; the operator adds what they cannot know and
passes `ReplaySettings` to the driver as a JSON file. The driver reports on /status and in its
termination message, which it keeps up to date for the case that it is killed: both are a
`ReplayReport`. Fields are added, never changed, because an operator may read reports of drivers of
another version.
"""

from collections.abc import Mapping
from datetime import datetime
from enum import IntEnum
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field, ValidationError, model_validator

from outbox_core.contract.reasons import LONGEST_MESSAGE_CHARS
from outbox_core.contract.report import ReportPart
from outbox_core.contract.selection import Selection
from outbox_core.contract.settings import HttpPort, Log, StoreSettings, explain
from outbox_core.contract.values import Settings, Time
from outbox_core.errors import SettingsError

TERMINATION_BYTES = 4096
"""Kubernetes keeps the last bytes of a termination message, this many; a newline counts."""


NO_STATE: Final = (
    "Backfill takes events that the relay never had, so they have no state: remove "
    "select.states, select.published and select.errorMatches"
)


class Rate(Settings):
    events_per_second: Annotated[int, Field(ge=1, le=1_000_000)] = 1000
    """At most this many events per second are given back to the relay."""
    yield_to_live: bool = True
    """Slow down, to a crawl if necessary, while live events wait longer than they did before."""


class ReplayRequest(Settings):
    """What a person asks for."""

    select: Selection = Selection()
    """Which events. Default: all DEAD ones."""
    action: Literal["Requeue", "Backfill"] = "Requeue"
    """Requeue: events that this relay had before go out again. Backfill: events from before the
    relay existed, which it never had, get their first delivery on it."""
    rate: Rate = Rate()
    """How fast. By default, live traffic goes first."""
    dry_run: bool = False
    """Show in the status what would happen; change nothing."""
    max_events: Annotated[int, Field(ge=1)] | None = None
    """If more events match, none is replayed: a guard against a selection that is too wide."""
    reset_attempts: bool = True
    """Give events their full number of attempts again. Otherwise an event that has used them up is
    DEAD after its next failure. The count of attempts so far is kept."""
    reason: Annotated[str, Field(min_length=1, max_length=1000, pattern=r"[^ ]")]
    """Why the events are replayed. The audit keeps it permanently."""

    @model_validator(mode="after")
    def backfill_fits(self) -> "ReplayRequest":
        wanted = self.select
        stateful = (wanted.states, wanted.published, wanted.error_matches)
        if self.action == "Backfill" and stateful != (None, None, None):
            raise ValueError(NO_STATE)
        return self

    @property
    def states(self) -> tuple[Literal["DEAD", "PUBLISHED"], ...]:
        """The states that a Requeue selects."""
        return self.select.states or ("DEAD",)


class ReplaySettings(ReplayRequest):
    """The driver's settings."""

    id: Annotated[str, Field(min_length=1, max_length=400)]
    """The replay's id in the plan, the ledger, the audit and the deliveries. The same in every
    attempt, so that a later one continues; different for a resource that is created again."""
    relay: Annotated[str, Field(min_length=1)]
    """The relay's name in the database."""
    requested_by: str | None = None
    """Who created the resource, for the audit."""
    connections: Annotated[int, Field(ge=1, le=64)] = 16
    """At most this many tasks take chunks at the same time, even if Spark has room for more: each
    needs a connection to the database, and two keep it busy."""
    store: StoreSettings = StoreSettings()
    http: HttpPort = HttpPort()
    log: Log = Log()


class Exit(IntEnum):
    """How the driver ended, for a reader that sees only the exit code."""

    DONE = 0
    AGAIN = 1
    """Another attempt may succeed, and continues where this one ended."""
    FINAL = 2
    """No attempt will succeed until the request, or what it refers to, changes."""


class TypeCount(ReportPart):
    """How many events of one type and state match."""

    event_type: str
    """The event type."""
    state: str | None = None
    """Their state on this relay; none if it never had them."""
    count: Annotated[int, Field(ge=0)]
    """How many events."""


class Preview(ReportPart):
    """What a dry run found."""

    by_type: Annotated[tuple[TypeCount, ...], Field(max_length=100)] = ()
    """How many events match, the most frequent types first; the rarest are left out if there is no
    room."""
    types_left_out: Annotated[int, Field(ge=1)] | None = None
    """How many rows are missing from `byType`."""
    oldest: Time | None = None
    """When the oldest matching event was stored."""
    newest: Time | None = None
    """When the newest matching event was stored."""
    keys: Annotated[int, Field(ge=0)] | None = None
    """How many ordering keys are affected."""
    estimated_seconds: Annotated[int, Field(ge=0)] | None = None
    """How long it would take at this rate."""
    samples: Annotated[tuple[str, ...], Field(max_length=20)] = ()
    """Ids of some matching events."""
    warnings: Annotated[tuple[str, ...], Field(max_length=20)] = ()
    """What consumers would see: duplicates, and keys whose later events are already out."""

    def shorter(self) -> "Preview":
        """Without one sample, or without the rarest type."""
        if len(self.samples) * 4 > len(self.by_type):
            return self.model_copy(update={"samples": self.samples[:-1]})
        left_out = (self.types_left_out or 0) + 1
        return self.model_copy(update={"by_type": self.by_type[:-1], "types_left_out": left_out})


class ReplayReport(ReportPart):
    version: str
    id: str
    stage: Literal["Starting", "Planning", "Running", "Succeeded", "Failed", "Stopped"]
    """Stopped: the driver was asked to stop; what is done stays done, and another one continues."""
    matched: int | None = None
    """None until the plan is made."""
    replayed: int = 0
    skipped: int = 0
    skipped_because: Mapping[str, int] = Field(default_factory=dict)
    """Claimed, Pending, Published, Dead: their state when their turn came, instead of the selected
    one; Delivered: the relay got the event in the meantime (Backfill)."""
    rate: float = 0.0
    """Events per second, recently."""
    pace: float | None = None
    """Events per second that are allowed now: fewer than requested while live events wait."""
    seconds_left: float | None = None
    reason: str | None = None
    """Why it failed: from `contract.reasons`, or one that a newer version added."""
    message: str = ""
    """What is going on, or what is wrong and what to do. One line."""
    preview: Preview | None = None
    observed_at: datetime
    counted_at: datetime | None = None
    """When matched, replayed and skipped were read in the database. None: not yet, or the driver
    does not report it."""
    final: bool = False
    """They were read after the stop was recorded, and nothing is replayed after that. Otherwise
    more may have been done since."""

    @property
    def figures_as_of(self) -> datetime | None:
        """None: the figures are final."""
        if self.final or self.stage == "Succeeded":
            return None
        return self.counted_at or self.observed_at

    @property
    def ended(self) -> bool:
        """The driver reported its end. Otherwise, as a termination message, this is what a driver
        had written when it was killed."""
        return self.stage in ("Succeeded", "Failed", "Stopped")

    def termination_message(self) -> str:
        """One line that Kubernetes does not cut off. What does not fit is left out, samples
        first."""
        short = self
        while len(text := short._as_json()) >= TERMINATION_BYTES:
            shown = short.preview
            if shown is not None and (shown.samples or shown.by_type):
                changes: dict[str, object] = {"preview": shown.shorter()}
            elif shown is not None:
                changes = {"preview": None}
            elif short.message:
                changes = {
                    "message": short.message[: min(LONGEST_MESSAGE_CHARS, len(short.message) - 100)]
                }
            else:
                break
            short = short.model_copy(update=changes)
        return text.decode()

    def _as_json(self) -> bytes:
        return self.model_dump_json(by_alias=True, exclude_none=True).encode()

    @classmethod
    def read(cls, text: str) -> "ReplayReport | None":
        """None if the container wrote something else, or was killed before it wrote anything."""
        try:
            return cls.model_validate_json(text)
        except ValidationError:
            return None


def load_replay(path: Path) -> ReplaySettings:
    """Read and check the driver's file."""
    try:
        return ReplaySettings.model_validate_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"cannot read {path}: {error.strerror}") from error
    except ValidationError as error:
        raise SettingsError(f"{path}:\n{explain(error)}") from error

"""
OutboxReplay: the request as people write it, and the status as the operator writes it.

Its spec never changes once it is made, but for `suspend`: what was audited is what runs. Which
events it is about is said in `selection`.
"""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, model_validator

from outbox_operator.resources.conditions import Condition
from outbox_operator.resources.objects import (
    API_VERSION,
    Count,
    ObjectName,
    Quantity,
    Resource,
    Status,
    Time,
)
from outbox_operator.resources.pods import PodSettings
from outbox_operator.resources.selection import Selection
from outbox_relay.contract.values import Settings

SparkMemory = Annotated[str, Field(max_length=10, pattern=r"^[1-9][0-9]*(Mi|Gi)$")]


class RelayRef(Settings):
    name: ObjectName
    """An OutboxRelay of the same namespace."""


class Rate(Settings):
    events_per_second: Annotated[int, Field(ge=1, le=1_000_000)] = 1000
    """At most so many are given back to the relay per second."""
    yield_to_live: bool = True
    """Go slower, down to a crawl, while live events wait longer than before."""


class SparkPod(Settings):
    cores: Annotated[int, Field(ge=1, le=64)] = 1
    """Tasks at once."""
    cpu: Quantity | None = None
    """What the pod asks the cluster for. Default: as many as `cores`."""
    memory: SparkMemory = "1Gi"
    """Spark's own memory; the pod gets Spark's usual overhead in addition."""


class Executors(SparkPod):
    instances: Annotated[int, Field(ge=0, le=100)] = 2
    """How many. 0: the driver does it all itself, which is enough for some 100,000 events."""


class ReplaySpec(Settings):
    """What people write, once."""

    relay_ref: RelayRef
    """The relay that publishes the events again."""
    select: Selection = Selection()
    """Which events. Default: all that are DEAD."""
    action: Literal["Requeue", "Backfill"] = "Requeue"
    """Requeue: events that this relay had go out again. Backfill: events from before the relay,
    which it never had, get their first delivery on it."""
    rate: Rate = Rate()
    """How fast. By default live traffic goes first."""
    dry_run: bool = False
    """Say in the status what would happen; change nothing."""
    max_events: Annotated[int, Field(ge=1)] | None = None
    """If more match, nothing is replayed at all: a guard against a selection that is too wide."""
    reset_attempts: bool = True
    """Give events their full budget of attempts again; else one that spent it is DEAD after its
    next failure. The number of attempts so far is kept."""
    reason: Annotated[str, Field(min_length=1, max_length=1000, pattern=r"[^ ]")]
    """Why; kept in the audit for good."""
    suspend: bool = False
    """Stop within seconds and keep what is done; false again: go on there. The only field that can
    be changed."""
    engine: Literal["SparkApplication", "Job"] | None = None
    """SparkApplication needs the Kubeflow Spark operator; Job runs the same program without it.
    Default: SparkApplication where the cluster has it, else Job."""
    driver: SparkPod = SparkPod()
    """The pod that plans and leads."""
    executor: Executors = Executors()
    """The pods that do the work."""
    spark_conf: Annotated[Mapping[str, str], Field(max_length=100)] = Field(default_factory=dict)
    """More settings of Spark, such as where its event log goes. What the operator sets wins."""
    pod: PodSettings = PodSettings()
    """Image, place and environment of driver and executors."""
    backoff_limit: Annotated[int, Field(ge=0, le=100)] = 3
    """How often a failed attempt is followed by another, which goes on where it ended."""
    ttl_seconds_after_finished: Annotated[int, Field(ge=0)] | None = None
    """When the resource is deleted after its end. Default: never; the audit stays in any case."""

    @model_validator(mode="after")
    def backfill_fits(self) -> "ReplaySpec":
        wanted = self.select
        stateful = (wanted.states, wanted.published, wanted.error_matches)
        if self.action == "Backfill" and stateful != (None, None, None):
            raise ValueError(
                "Backfill takes events that the relay never had, so they have no state: remove "
                "select.states, select.published and select.errorMatches"
            )
        return self

    @property
    def states(self) -> tuple[Literal["DEAD", "PUBLISHED"], ...]:
        """Those that a Requeue takes."""
        return self.select.states or ("DEAD",)


Phase = Literal["Pending", "Planning", "Running", "Suspended", "Succeeded", "Failed", "Cancelled"]


class TypeCount(Status):
    """How many events of one type and state match."""

    event_type: str
    """The type."""
    state: str
    """The state on this relay."""
    count: Count
    """How many."""


class Preview(Status):
    """What a dry run found."""

    by_type: Annotated[tuple[TypeCount, ...], Field(max_length=100)] = ()
    """How many match, the most frequent types first."""
    oldest: Time | None = None
    """When the oldest of them was stored."""
    newest: Time | None = None
    """When the newest of them was stored."""
    keys: Count | None = None
    """Ordering keys that are touched."""
    estimated_seconds: Count | None = None
    """How long it would take at this rate."""
    samples: Annotated[tuple[str, ...], Field(max_length=20)] = ()
    """Ids of some of them."""
    warnings: Annotated[tuple[str, ...], Field(max_length=20)] = ()
    """What consumers would see: duplicates, and keys whose later events are out already."""


class ReplayStatus(Status):
    """What the operator knows, from the driver and its end."""

    observed_generation: Count | None = None
    """The metadata.generation that this status is about."""
    phase: Phase | None = None
    """Where it stands, in a word."""
    conditions: Annotated[tuple[Condition, ...], Field(max_length=20)] = ()
    """Accepted, Suspended, Complete, Failed."""
    matched: Count | None = None
    """Events that the frozen selection found."""
    replayed: Count | None = None
    """Events that were given back to the relay."""
    skipped: Count | None = None
    """Events that were left alone, because they had changed by then."""
    skipped_because: Mapping[str, Count] = Field(default_factory=dict)
    """Why, with counts."""
    percent: Annotated[int, Field(ge=0, le=100)] | None = None
    """How much of the plan is done."""
    progress: str | None = None
    """The same for people: `45%`."""
    rate: Annotated[float, Field(ge=0)] | None = None
    """Events per second, of late."""
    eta: Time | None = None
    """When it will be done at that rate."""
    start_time: Time | None = None
    """When the first attempt was started."""
    completion_time: Time | None = None
    """When it ended, well or not."""
    attempts: Count | None = None
    """How many attempts were started."""
    engine: Literal["SparkApplication", "Job"] | None = None
    """Which engine was taken."""
    application: str | None = None
    """The SparkApplication or Job of the last attempt."""
    message: str | None = None
    """What is going on, or why it failed and what to do."""
    requested_by: str | None = None
    """Who made the resource, where that is known."""
    preview: Preview | None = None
    """What a dry run found."""


class OutboxReplay(Resource):
    """Brings events back to an OutboxRelay: dead ones, published ones, or those from before it."""

    api_version: Literal["outbox.dev/v1alpha1"] = API_VERSION
    kind: Literal["OutboxReplay"] = "OutboxReplay"
    spec: ReplaySpec
    """What you want. Only `suspend` can be changed afterwards."""
    status: ReplayStatus = ReplayStatus()
    """What is. Written by the operator."""

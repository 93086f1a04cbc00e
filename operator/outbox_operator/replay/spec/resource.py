"""
OutboxReplay: the request as people write it, and the status as the operator writes it.

Its spec never changes after creation, except `suspend`: what was audited is what runs.
`contract.selection` defines which events it replays.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, model_validator

from outbox_core.contract.replay import Preview, ReplayRequest
from outbox_core.contract.values import Settings, Time
from outbox_operator.shared.conditions import Condition
from outbox_operator.shared.objects import (
    API_VERSION,
    Count,
    Generation,
    ObjectName,
    Quantity,
    Resource,
    Status,
)
from outbox_operator.shared.pod_settings import PodSettings

REQUESTED_BY = "outbox.dev/requested-by"
"""An annotation: the person who requests the replay. Kubernetes does not record who created a
resource."""

POD_KEYS = (
    r"^spark\.(executorEnv\.|kubernetes\.(container\.image|driverEnv\.|authenticate\.|namespace|"
    r"(driver|executor)\.(container\.image|volumes\.|secrets\.|secretKeyRef\.|podTemplate|"
    r"serviceAccount)))"
)
"""Settings of Spark that would make pods differ from `pod`."""
POD_KEYS_REFUSED = (
    "sparkConf: images, accounts, variables, volumes, secrets and templates of pods cannot be set "
    "there: use spec.pod"
)

SparkMemory = Annotated[str, Field(max_length=10, pattern=r"^[1-9][0-9]*(Mi|Gi)$")]


class RelayRef(Settings):
    name: ObjectName
    """The name of an OutboxRelay in the same namespace."""


class SparkPod(Settings):
    cores: Annotated[int, Field(ge=1, le=64)] = 1
    """How many tasks run at the same time."""
    cpu: Quantity | None = None
    """The cpu that the pod requests. Default: the same as `cores`."""
    memory: SparkMemory = "1Gi"
    """Spark's own memory. The pod gets Spark's usual overhead in addition."""


class Executors(SparkPod):
    instances: Annotated[int, Field(ge=0, le=100)] = 2
    """How many. 0: the driver does all the work, which is enough for about 100,000 events."""


class ReplaySpec(ReplayRequest):
    """The spec of an OutboxReplay, written once."""

    relay_ref: RelayRef
    """The relay that publishes the events again."""
    suspend: bool = False
    """true: stop within seconds and keep what is done. false again: continue from there. The only
    field that can be changed."""
    engine: Literal["SparkApplication", "Job"] | None = None
    """SparkApplication needs the Kubeflow Spark operator; Job runs the same program without it.
    Default: SparkApplication if the cluster has that kind, otherwise Job."""
    driver: SparkPod = SparkPod()
    """The pod that plans and coordinates the replay."""
    executor: Executors = Executors()
    """The pods that do the work."""
    spark_conf: Annotated[Mapping[str, str], Field(max_length=100)] = Field(default_factory=dict)
    """More settings of Spark, such as where its event log goes. Settings that the operator sets
    win. What belongs in `pod` (images, accounts, variables, volumes, secrets, templates) is refused
    here."""
    pod: PodSettings = PodSettings()
    """Image, placement and environment of driver and executors."""
    backoff_limit: Annotated[int, Field(ge=0, le=100)] = 3
    """How many times a failed attempt is followed by another, which continues where it stopped."""
    ttl_seconds_after_finished: Annotated[int, Field(ge=0)] | None = None
    """How long after the replay's end the resource is deleted. Default: never. The audit stays
    either way."""

    @model_validator(mode="after")
    def spark_conf_is_sparks(self) -> "ReplaySpec":
        if any(re.search(POD_KEYS, key) for key in self.spark_conf):
            raise ValueError(POD_KEYS_REFUSED)
        return self


Phase = Literal["Pending", "Planning", "Running", "Suspended", "Succeeded", "Failed", "Cancelled"]


class ReplayStatus(Status):
    """What the operator knows about the replay, from the driver's reports and how it ended."""

    observed_generation: Generation | None = None
    """The metadata.generation that this status describes; -1: no operator has seen it yet."""
    phase: Phase | None = None
    """The stage of the replay, in one word."""
    conditions: Annotated[tuple[Condition, ...], Field(max_length=20)] = ()
    """Accepted, Suspended, Complete, Failed, Reconciling, Stalled."""
    matched: Count | None = None
    """Events that the frozen selection found."""
    replayed: Count | None = None
    """Events that were given back to the relay."""
    skipped: Count | None = None
    """Events that were left unchanged, because their state had changed before their turn."""
    skipped_because: Mapping[str, Count] = Field(default_factory=dict)
    """Why events were skipped, with counts."""
    percent: Annotated[int, Field(ge=0, le=100)] | None = None
    """How much of the plan is done."""
    progress: str | None = None
    """The same for people: `45%`."""
    rate: Annotated[float, Field(ge=0)] | None = None
    """Events per second, recently."""
    eta: Time | None = None
    """When the replay will be done at that rate."""
    start_time: Time | None = None
    """When the first attempt was started."""
    completion_time: Time | None = None
    """When the replay ended, successfully or not."""
    attempts: Count | None = None
    """How many attempts were started."""
    failures: Count | None = None
    """How many attempts failed. Attempts that were stopped do not count."""
    next_attempt_time: Time | None = None
    """When the next attempt starts, if the last one failed."""
    engine: Literal["SparkApplication", "Job"] | None = None
    """Which engine runs it."""
    application: str | None = None
    """The SparkApplication or Job of the last attempt."""
    message: str | None = None
    """What is going on, or why it failed and what to do."""
    requested_by: str | None = None
    """Who created the resource, if that is known."""
    preview: Preview | None = None
    """What a dry run found."""


class OutboxReplay(Resource):
    """Brings events back to an OutboxRelay: dead ones, published ones, or those from before the
    relay existed."""

    api_version: Literal["outbox.dev/v1alpha1"] = API_VERSION
    kind: Literal["OutboxReplay"] = "OutboxReplay"
    spec: ReplaySpec
    """The request. Written by you; only `suspend` can be changed afterwards."""
    status: ReplayStatus = ReplayStatus()
    """The current state. Written by the operator."""

    @property
    def replay_id(self) -> str:
        """In the database. It includes a part of the uid, because a resource that is created again
        under the same name is another replay."""
        meta = self.metadata
        return f"{meta.namespace}/{meta.name}@{meta.uid[:8]}"

    @property
    def requested_by(self) -> str | None:
        return self.metadata.annotations.get(REQUESTED_BY)

    @property
    def has_executors(self) -> bool:
        """Otherwise the driver does all the work. A dry run only reads, and needs no executors."""
        return self.spec.executor.instances > 0 and not self.spec.dry_run

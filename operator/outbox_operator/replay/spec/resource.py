"""
OutboxReplay: the request as people write it, and the status as the operator writes it.

Its spec never changes once it is made, but for `suspend`: what was audited is what runs. Which
events it is about is said in `selection`.
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
"""An annotation: who asks for it. Kubernetes does not keep who made a resource."""

POD_KEYS = (
    r"^spark\.(executorEnv\.|kubernetes\.(container\.image|driverEnv\.|authenticate\.|namespace|"
    r"(driver|executor)\.(container\.image|volumes\.|secrets\.|secretKeyRef\.|podTemplate|"
    r"serviceAccount)))"
)
"""Settings of Spark by which pods would be something else than `pod` says."""
POD_KEYS_TOLD = (
    "sparkConf: images, accounts, variables, volumes, secrets and templates of pods are not set "
    "there: use spec.pod"
)

SparkMemory = Annotated[str, Field(max_length=10, pattern=r"^[1-9][0-9]*(Mi|Gi)$")]


class RelayRef(Settings):
    name: ObjectName
    """An OutboxRelay of the same namespace."""


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


class ReplaySpec(ReplayRequest):
    """What people write, once."""

    relay_ref: RelayRef
    """The relay that publishes the events again."""
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
    """More settings of Spark, such as where its event log goes. What the operator sets wins; what
    `pod` is for (images, accounts, variables, volumes, secrets, templates) is refused here."""
    pod: PodSettings = PodSettings()
    """Image, place and environment of driver and executors."""
    backoff_limit: Annotated[int, Field(ge=0, le=100)] = 3
    """How often a failed attempt is followed by another, which goes on where it ended."""
    ttl_seconds_after_finished: Annotated[int, Field(ge=0)] | None = None
    """When the resource is deleted after its end. Default: never; the audit stays in any case."""

    @model_validator(mode="after")
    def spark_conf_is_sparks(self) -> "ReplaySpec":
        if any(re.search(POD_KEYS, key) for key in self.spark_conf):
            raise ValueError(POD_KEYS_TOLD)
        return self


Phase = Literal["Pending", "Planning", "Running", "Suspended", "Succeeded", "Failed", "Cancelled"]


class ReplayStatus(Status):
    """What the operator knows, from the driver and its end."""

    observed_generation: Generation | None = None
    """The metadata.generation that this status is about; -1: no operator has seen it yet."""
    phase: Phase | None = None
    """Where it stands, in a word."""
    conditions: Annotated[tuple[Condition, ...], Field(max_length=20)] = ()
    """Accepted, Suspended, Complete, Failed, Reconciling, Stalled."""
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
    failures: Count | None = None
    """How many of them failed; those that were stopped did not."""
    next_attempt_time: Time | None = None
    """When the next attempt is started, where the last one failed."""
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

    @property
    def replay_id(self) -> str:
        """In the database. With a part of the uid: a resource that is made anew under the same name
        is another replay."""
        meta = self.metadata
        return f"{meta.namespace}/{meta.name}@{meta.uid[:8]}"

    @property
    def requested_by(self) -> str | None:
        return self.metadata.annotations.get(REQUESTED_BY)

    @property
    def has_executors(self) -> bool:
        """Else the driver does it all itself; for a dry run a look is enough."""
        return self.spec.executor.instances > 0 and not self.spec.dry_run

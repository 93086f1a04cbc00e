"""Settings of a relay's pods, beyond those that all pods of ours take."""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, model_validator

from outbox_core.contract.values import Settings
from outbox_operator.shared.objects import Quantity
from outbox_operator.shared.pod_settings import PodSettings


class ResourceRequirements(Settings):
    requests: Annotated[Mapping[str, Quantity], Field(max_length=20)] = Field(default_factory=dict)
    """What a pod is promised: cpu, memory."""
    limits: Annotated[Mapping[str, Quantity], Field(max_length=20)] = Field(default_factory=dict)
    """What it cannot exceed. A limit of memory is advised, one of cpu only slows a drain down."""


class SpreadConstraint(Settings):
    """The rest is Kubernetes' own, and passes through as it is."""

    model_config = ConfigDict(extra="allow")

    max_skew: Annotated[int, Field(ge=1)]
    """By how many pods two places may differ."""
    topology_key: Annotated[str, Field(min_length=1, max_length=317)]
    """The label of nodes that makes a place, such as `topology.kubernetes.io/zone`."""
    when_unsatisfiable: Literal["DoNotSchedule", "ScheduleAnyway"]
    """What becomes of a pod that would violate it."""


class RelayPod(PodSettings):
    resources: ResourceRequirements = ResourceRequirements()
    """Of the relay's container. Default: what the operator thinks a relay needs."""
    topology_spread_constraints: Annotated[tuple[SpreadConstraint, ...], Field(max_length=10)] = ()
    """As in a pod's spec. Default: spread over nodes and zones where that is possible."""

    @model_validator(mode="after")
    def constraints_differ(self) -> "RelayPod":
        given = [(c.topology_key, c.when_unsatisfiable) for c in self.topology_spread_constraints]
        if len(given) > len(set(given)):
            raise ValueError(
                "topologySpreadConstraints: two have the same topologyKey and whenUnsatisfiable, "
                "remove one"
            )
        return self

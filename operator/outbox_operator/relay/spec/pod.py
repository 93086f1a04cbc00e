"""Settings of a relay's pods, in addition to those that all our pods share."""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, model_validator

from outbox_core.contract.values import Settings
from outbox_operator.shared.objects import Quantity
from outbox_operator.shared.pod_settings import PodSettings


class ResourceRequirements(Settings):
    requests: Annotated[Mapping[str, Quantity], Field(max_length=20)] = Field(default_factory=dict)
    """What the node reserves for a pod: cpu, memory."""
    limits: Annotated[Mapping[str, Quantity], Field(max_length=20)] = Field(default_factory=dict)
    """What a pod cannot exceed. Set a memory limit; a cpu limit only makes a relay drain slower."""


class SpreadConstraint(Settings):
    """Other fields belong to Kubernetes, and are passed on unchanged."""

    model_config = ConfigDict(extra="allow")

    max_skew: Annotated[int, Field(ge=1)]
    """By how many pods two topology domains may differ."""
    topology_key: Annotated[str, Field(min_length=1, max_length=317)]
    """The node label that defines a domain, such as `topology.kubernetes.io/zone`."""
    when_unsatisfiable: Literal["DoNotSchedule", "ScheduleAnyway"]
    """What happens to a pod that would violate the constraint."""


class RelayPod(PodSettings):
    resources: ResourceRequirements = ResourceRequirements()
    """For the relay's container. Default: what the operator considers enough for a relay."""
    topology_spread_constraints: Annotated[tuple[SpreadConstraint, ...], Field(max_length=10)] = ()
    """As in a pod's spec. Default: spread over nodes and zones if possible."""

    @model_validator(mode="after")
    def constraints_differ(self) -> "RelayPod":
        given = [(c.topology_key, c.when_unsatisfiable) for c in self.topology_spread_constraints]
        if len(given) > len(set(given)):
            raise ValueError(
                "topologySpreadConstraints: two constraints have the same topologyKey and "
                "whenUnsatisfiable, remove one"
            )
        return self

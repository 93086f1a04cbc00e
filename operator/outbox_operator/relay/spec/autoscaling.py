"""Autoscaling as people request it. `decide.autoscaling` decides."""

from datetime import timedelta
from typing import Annotated

from pydantic import Field, model_validator

from outbox_core.contract.values import Duration, Settings

MOST_REPLICAS = 1000
"""More must be a typo: a single pod drains about ten thousand events a second."""


class Autoscaling(Settings):
    min_replicas: Annotated[int, Field(ge=1, le=MOST_REPLICAS)] = 1
    """The smallest number of pods."""
    max_replicas: Annotated[int, Field(ge=1, le=MOST_REPLICAS)]
    """The largest number of pods. Every pod holds connections to the database."""
    target_lag_seconds: Annotated[int, Field(ge=1, le=86_400)] = 30
    """How old the oldest waiting event may become, and how long draining the backlog may take,
    before the operator adds pods."""
    scale_up_stabilization: Annotated[Duration, Field(le=timedelta(hours=1))] = timedelta(
        seconds=15
    )
    """How long the lag must be too high before a pod is added: a shorter burst needs none."""
    scale_down_stabilization: Annotated[Duration, Field(le=timedelta(days=1))] = timedelta(
        minutes=5
    )
    """How long fewer pods must have been enough before one is removed: every change moves lanes
    and starts pods."""

    @model_validator(mode="after")
    def in_order(self) -> "Autoscaling":
        if self.min_replicas > self.max_replicas:
            raise ValueError("minReplicas must not be above maxReplicas")
        return self

"""Autoscaling as a person asks for it. The decision itself is in `decide.autoscaling`."""

from datetime import timedelta
from typing import Annotated

from pydantic import Field, model_validator

from outbox_core.contract.values import Duration, Settings

MOST_REPLICAS = 1000
"""More is a slip of the finger: a relay drains some ten thousand events a second."""


class Autoscaling(Settings):
    min_replicas: Annotated[int, Field(ge=1, le=MOST_REPLICAS)] = 1
    """Never fewer."""
    max_replicas: Annotated[int, Field(ge=1, le=MOST_REPLICAS)]
    """Never more. Every replica holds connections to the database."""
    target_lag_seconds: Annotated[int, Field(ge=1, le=86_400)] = 30
    """How old the oldest waiting event may become, and how long a drain may take, before there
    are more replicas."""
    scale_up_stabilization: Annotated[Duration, Field(le=timedelta(hours=1))] = timedelta(
        seconds=15
    )
    """How long the lag must be too high first: a burst that is gone by then needs no pod."""
    scale_down_stabilization: Annotated[Duration, Field(le=timedelta(days=1))] = timedelta(
        minutes=5
    )
    """How long fewer replicas must have been enough before one goes: every change makes lanes
    move and pods start."""

    @model_validator(mode="after")
    def in_order(self) -> "Autoscaling":
        if self.min_replicas > self.max_replicas:
            raise ValueError("minReplicas must not be above maxReplicas")
        return self

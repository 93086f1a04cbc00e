"""
What was seen of a replay: its relay, its attempts, and their pods, as plain values.

`gather` fills it, `decide` judges by it. What all kinds have is in `shared.seen`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Self

from outbox_core.contract.replay import ReplayReport
from outbox_operator.replay.children.pod import ATTEMPT, DRIVER_CONTAINER
from outbox_operator.replay.spec.target import TargetRelay
from outbox_operator.shared.objects import Body
from outbox_operator.shared.seen import ENDED, Pod, Surroundings


@dataclass(frozen=True)
class Ended:
    """How a driver ended."""

    exit_code: int | None
    """None: it never ran, or the exit code is not known."""
    cause: str
    """The reason that Kubernetes gives: Completed, Error, OOMKilled, Evicted."""
    report: ReplayReport | None = None
    """Its termination message. It reports an end only if the driver was not killed before."""


@dataclass(frozen=True)
class Driver:
    """The pod of one attempt."""

    pod: Pod
    attempt: int
    running: bool = False
    ended: Ended | None = None
    report: ReplayReport | None = None
    """Its answer on /status."""
    silent: timedelta = timedelta()
    """How long it has not answered there."""
    kill_deadline: datetime | None = None
    """It is being deleted, and is killed at this time at the latest."""

    @classmethod
    def of(cls, body: Body, report: ReplayReport | None, silent: timedelta = timedelta()) -> Self:
        metadata, status = body["metadata"], body.get("status") or {}
        kill_deadline = metadata.get("deletionTimestamp")
        container = next(
            (c for c in status.get("containerStatuses") or () if c["name"] == DRIVER_CONTAINER),
            None,
        )
        return cls(
            pod=Pod.of(body, None),
            attempt=int((metadata.get("labels") or {}).get(ATTEMPT, 0)),
            running="running" in ((container or {}).get("state") or {}),
            ended=_ended(status, container),
            report=report,
            silent=silent,
            kill_deadline=datetime.fromisoformat(kill_deadline) if kill_deadline else None,
        )


def _ended(status: Body, container: Body | None) -> Ended | None:
    state = ((container or {}).get("state") or {}).get("terminated")
    if state:
        report = ReplayReport.read(state.get("message") or "")
        return Ended(state.get("exitCode"), state.get("reason", ""), report)
    if status.get("phase") in ENDED:  # it was evicted before it ran, or its node is gone
        return Ended(None, status.get("reason", ""), None)
    return None


@dataclass(frozen=True)
class ReplaySeen(Surroundings):
    relay: TargetRelay | None = None
    relay_invalid: bool = False
    """The relay exists, but its spec is invalid."""
    drivers: Sequence[Driver] = ()
    """The drivers of all attempts whose pods still exist."""
    gone: Sequence[Driver] = ()
    """The drivers whose pods were deleted a moment ago."""
    executors: Sequence[Pod] = ()
    """The executors that have not ended."""
    spark_operator: bool = False
    """The cluster knows SparkApplications."""

    def driver(self, attempt: int) -> Driver | None:
        return next((d for d in self.drivers if d.attempt == attempt), None)

    def last_of(self, attempt: int) -> Driver | None:
        """Also if its pod is already gone."""
        return next((d for d in (*self.drivers, *self.gone) if d.attempt == attempt), None)

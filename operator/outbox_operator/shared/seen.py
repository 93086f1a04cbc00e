"""
Seen: what the operator knows about a resource's surroundings, as plain values.

The `gather` of each kind fills it, and its `decide` judges by it; nothing else reads the cluster.
What only one kind has is in its own `seen`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple, Self

from outbox_core.contract.reasons import TerminationMessage
from outbox_core.contract.report import Report
from outbox_operator.shared.objects import REVISION, Body

ChildKey = tuple[str, str]
"""Kind and name of a child."""

ENDED = ("Succeeded", "Failed")
"""Phases of a pod that will not run again: its work is done, it was evicted, or its node was shut
down. The object may stay for a long time."""
NOT_TRIED_REASONS = frozenset({"ContainerCreating", "PodInitializing"})
"""The kubelet's reasons for containers that it has not tried to start yet."""


@dataclass(frozen=True)
class Stopped:
    """A container that ended with an error."""

    container: str
    exit_code: int
    words: TerminationMessage | None
    """Its termination message, if a program of ours wrote it."""
    cause: str
    """The reason that Kubernetes gives: Error, OOMKilled."""
    back_since: datetime | None = None
    """When it started again, if it is ready now and has ended more than once."""


@dataclass(frozen=True)
class Waiting:
    """A container that cannot start."""

    container: str
    reason: str
    message: str


@dataclass(frozen=True)
class Pod:
    name: str
    ip: str | None = None
    ready: bool = False
    terminating: bool = False
    """It is being deleted."""
    ended: bool = False
    """It no longer runs, and holds no claims."""
    revision: str | None = None
    """The version of the pod template that it was created from."""
    migrating: bool = False
    """Its container migrate is running: it has a node, its image and its volumes."""
    unschedulable: str | None = None
    held_since: datetime | None = None
    """When it was scheduled, if the node has not started on its containers since: volumes and
    network come first, and only then images."""
    waiting: tuple[Waiting, ...] = ()
    stopped: tuple[Stopped, ...] = ()
    report: Report | None = None

    @classmethod
    def of(cls, body: Body, report: Report | None) -> Self:
        status = body.get("status") or {}
        conditions = {c["type"]: c for c in status.get("conditions") or ()}
        containers = [
            *(status.get("initContainerStatuses") or ()),
            *(status.get("containerStatuses") or ()),
        ]
        scheduled = conditions.get("PodScheduled", {})
        return cls(
            name=body["metadata"]["name"],
            ip=status.get("podIP"),
            ready=conditions.get("Ready", {}).get("status") == "True",
            terminating="deletionTimestamp" in body["metadata"],
            ended=status.get("phase") in ENDED,
            revision=(body["metadata"].get("annotations") or {}).get(REVISION),
            migrating=any(
                c["name"] == "migrate" and "running" in (c.get("state") or {}) for c in containers
            ),
            unschedulable=(
                scheduled.get("message", "")
                if scheduled.get("status") == "False" and scheduled.get("reason") == "Unschedulable"
                else None
            ),
            held_since=_held_since(conditions, containers),
            waiting=tuple(
                Waiting(c["name"], w.get("reason", ""), w.get("message", ""))
                for c in containers
                if (w := (c.get("state") or {}).get("waiting"))
            ),
            stopped=tuple(s for c in containers if (s := _stopped(c))),
            report=report,
        )


def _held_since(conditions: Mapping[str, Body], containers: Sequence[Body]) -> datetime | None:
    """None if the node has not accepted the pod yet: then nothing is known about its volumes."""
    begun = conditions.get("PodReadyToStartContainers", {}).get("status") == "True"
    waiting = [(c.get("state") or {}).get("waiting", {}).get("reason") for c in containers]
    scheduled = conditions.get("PodScheduled", {})
    at = scheduled.get("lastTransitionTime") if scheduled.get("status") == "True" else None
    if begun or at is None or not waiting or not NOT_TRIED_REASONS.issuperset(waiting):
        return None
    return datetime.fromisoformat(at)


def _stopped(container: Body) -> Stopped | None:
    back_since: datetime | None = None
    if container.get("ready"):
        running = (container.get("state") or {}).get("running") or {}
        if container.get("restartCount", 0) < 2 or "startedAt" not in running:
            return None
        back_since = datetime.fromisoformat(running["startedAt"])
    for key in ("state", "lastState"):
        ended = (container.get(key) or {}).get("terminated")
        if ended and ended.get("exitCode"):
            return Stopped(
                container["name"],
                ended["exitCode"],
                TerminationMessage.read(ended.get("message") or ""),
                ended.get("reason", ""),
                back_since,
            )
    return None


class Written(NamedTuple):
    """When this process wrote a child, and the version that resulted."""

    at: datetime
    version: str


def is_older(metadata: Mapping[str, Any], version: str) -> bool:
    """Whether an object was seen before that version was written. Kubernetes counts versions up; if
    another server does not, nothing counts as older."""
    seen = metadata.get("resourceVersion", "")
    return seen.isdecimal() and version.isdecimal() and int(seen) < int(version)


class Ends(StrEnum):
    """How a restraint ends."""

    BY_A_PERSON = "by a person"
    """It is a problem that somebody has to fix."""
    ON_REQUEST = "on request"
    """Somebody asked for it, and will end it."""
    BY_ITSELF = "by itself"


@dataclass(frozen=True)
class Restraint:
    """Why the operator does less for a resource than it could."""

    ends: Ends
    reason: str
    message: str
    blocks_writes: bool = True
    """No child is written. Otherwise the restraint is only shown, or some children wait."""


@dataclass(frozen=True)
class Refusal:
    """The API server did not accept a child."""

    kind: str
    name: str
    message: str
    taken: bool = False
    """Somebody else owns an object of that name: it is left alone."""
    namespace_terminating: bool = False
    """The namespace is being deleted: nothing new can be created in it."""
    temporary: bool = False
    """An object of the same name is being removed: the child will be accepted a moment later."""


@dataclass(frozen=True)
class Secret:
    name: str
    version: str | None
    """None: there is no such Secret."""


@dataclass(frozen=True)
class Surroundings:
    """The surroundings of any resource."""

    children: Mapping[ChildKey, Body] = field(default_factory=dict)
    secrets: Sequence[Secret] = ()
    refusals: Sequence[Refusal] = ()
    restraint: Restraint | None = None

    def child(self, kind: str, name: str) -> Body | None:
        return self.children.get((kind, name))


@dataclass(frozen=True)
class SeenWithPods(Surroundings):
    pods: Sequence[Pod] = ()

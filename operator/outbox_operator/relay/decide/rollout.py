"""
The rollout: whether the last change has reached every pod, and whether it ever will.

Judged from the Deployment as it was just written, and from the last status. Used by `status`
(Ready, Reconciling, Stalled), `leftovers` (what the old pods still need) and `reaping`.
"""

from dataclasses import dataclass
from dataclasses import replace as with_
from datetime import datetime

from outbox_core.contract.reasons import ProcessReason
from outbox_operator.relay.children.pod import CONFIG_VOLUME
from outbox_operator.relay.decide.checks import first_finding, is_overdue
from outbox_operator.relay.seen import RelaySeen
from outbox_operator.relay.spec.resource import OutboxRelay, RolledOut
from outbox_operator.shared.checks import Finding
from outbox_operator.shared.names import child_name
from outbox_operator.shared.objects import REVISION, Body
from outbox_operator.shared.reasons import Reason

NEEDS_NO_PERSON = frozenset(
    {
        ProcessReason.STORE_UNREACHABLE,
        ProcessReason.BROKER_UNREACHABLE,
        ProcessReason.STORE_READ_ONLY,
        ProcessReason.STORE_BUSY,
        Reason.PODS_NOT_SCHEDULED,
    }
)
"""Problems that often end without a person: a database is being installed or fails over, an
autoscaler adds a node. They stall a rollout only when it is overdue."""


@dataclass(frozen=True)
class Counts:
    """Numbers of pods, as the Deployment counts them."""

    requested: int
    existing: int
    updated: int
    ready: int
    current: bool
    """The Deployment's controller has seen its latest version."""

    @property
    def complete(self) -> bool:
        return self.current and self.updated == self.existing == self.ready == self.requested

    @property
    def replaced(self) -> bool:
        """Every existing pod is a new one, no matter how many there are, and whether they are
        ready."""
        return self.current and self.updated == self.existing


def count_pods(relay: OutboxRelay, seen: RelaySeen, replicas: int) -> Counts:
    live = _deployment(relay, seen)
    if live is None:
        return Counts(replicas, 0, 0, 0, current=False)
    status = live.get("status") or {}
    return Counts(
        requested=replicas,
        existing=status.get("replicas", 0),
        updated=status.get("updatedReplicas", 0),
        ready=status.get("readyReplicas", 0),
        current=status.get("observedGeneration", 0) >= live["metadata"].get("generation", 0)
        and live["spec"].get("replicas", 1) == replicas,
    )


def is_complete(seen: RelaySeen, counts: Counts) -> bool:
    """All is as the spec requests. A child that was refused, or that the operator does not write
    now, is still as it was before the change."""
    withheld = seen.restraint is not None and (
        seen.restraint.blocks_writes or seen.restraint.reason == Reason.ROLLOUT_WAITING
    )
    return counts.complete and not seen.refusals and not withheld


def rolled_out(relay: OutboxRelay, seen: RelaySeen, counts: Counts) -> RolledOut | None:
    """The last change that reached every pod: the current one, or the one known before."""
    if not is_complete(seen, counts):
        return relay.status.rolled_out
    return RolledOut(
        generation=relay.metadata.generation,
        config_map=config_in_use(relay, seen),
        revision=revision_in_use(relay, seen),
    )


def is_done(relay: OutboxRelay, seen: RelaySeen, counts: Counts, done: RolledOut | None) -> bool:
    """No change is being carried out, whether the pods are ready or not: a pod that fails later, or
    that the autoscaler adds, is no change that somebody waits for."""
    reached = done is not None and done.generation == relay.metadata.generation
    return reached and counts.replaced and not seen.refusals


def obstacle(relay: OutboxRelay, seen: RelaySeen, counts: Counts, now: datetime) -> Finding | None:
    """Why an unfinished change cannot continue without a person. Only new pods count: what is wrong
    with the old ones, and what the Deployment's status shows about them, may be what the change
    corrects."""
    revision = revision_in_use(relay, seen)
    new = [p for p in seen.pods if not p.terminating and revision in (None, p.revision)]
    around = with_(
        seen,
        pods=new,
        children=seen.children if counts.current else {},
        refusals=[r for r in seen.refusals if not r.temporary],
    )
    found = first_finding(relay, around, now)
    if found is None or (found.reason in NEEDS_NO_PERSON and not is_overdue(relay, around)):
        return None
    return found


def config_in_use(relay: OutboxRelay, seen: RelaySeen) -> str | None:
    """The ConfigMap that the Deployment's next pod reads."""
    volumes = _template(_deployment(relay, seen) or {}).get("spec", {}).get("volumes") or ()
    return next((v["configMap"]["name"] for v in volumes if v["name"] == CONFIG_VOLUME), None)


def account_in_use(relay: OutboxRelay, seen: RelaySeen) -> str | None:
    """The service account of the Deployment's next pod."""
    spec: Body = _template(_deployment(relay, seen) or {}).get("spec") or {}
    return spec.get("serviceAccountName")


def revision_in_use(relay: OutboxRelay, seen: RelaySeen) -> str | None:
    """The revision of the Deployment's next pod. None: an operator that did not know revisions yet
    wrote the Deployment."""
    metadata: Body = _template(_deployment(relay, seen) or {}).get("metadata") or {}
    annotations: Body = metadata.get("annotations") or {}
    return annotations.get(REVISION)


def _deployment(relay: OutboxRelay, seen: RelaySeen) -> Body | None:
    return seen.child("Deployment", child_name(relay, "relay"))


def _template(deployment: Body) -> Body:
    found: Body = deployment.get("spec", {}).get("template") or {}
    return found

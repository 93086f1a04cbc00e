"""
Checks: what is wrong with a relay, the most telling first. Each returns a Finding or None.

A message says what is wrong and what to do; it is read by somebody who was just woken up.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

from outbox_core.contract.reasons import ProcessReason as RelayReason
from outbox_operator.children.deployment import PROGRESS_DEADLINE
from outbox_operator.children.names import child_name
from outbox_operator.resources.conditions import Reason, RelayCondition
from outbox_operator.resources.objects import Resource
from outbox_operator.resources.relay import OutboxRelay
from outbox_operator.resources.settings import secret_files
from outbox_operator.seen import Pod, Seen, Stopped, Surroundings, Waiting

NOT_PULLED = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"}
)

SET_UP = timedelta(minutes=1)
"""How long a node may take for a pod's volumes and network, which is seconds. The kubelet itself
gives up after two minutes, tries again for ever, and says why in an Event of the pod alone."""

WELL_AGAIN = timedelta(minutes=10)
"""How long what has ended more than once must run before it counts as well. The kubelet forgets
its back-off after the same time."""
TOLD_TO = frozenset({137, 143})
"""Exit codes of what was killed or asked to stop."""

CURES: dict[str, str] = {
    RelayReason.STORE_UNREACHABLE: "check that PostgreSQL runs and that pods may connect to it",
    RelayReason.BROKER_UNREACHABLE: "check that the broker runs and that pods may connect to it",
}
"""Of what a relay itself can only describe."""


@dataclass(frozen=True)
class Finding:
    reason: str
    message: str


Check = Callable[[OutboxRelay, Seen], Finding | None]


def the_operator_holds_back(resource: Resource, seen: Surroundings) -> Finding | None:
    found = seen.restraint
    if found is None or found.condition != RelayCondition.DEGRADED:
        return None
    return Finding(found.reason, found.message)


def a_name_is_taken(resource: Resource, seen: Surroundings) -> Finding | None:
    for refusal in seen.refusals:
        if refusal.taken:
            return Finding(
                Reason.NAME_TAKEN,
                f"there is a {refusal.kind} {refusal.name} already, and {refusal.message}: it is "
                f"left alone. Delete or rename it, or give this {resource.kind} another name",
            )
    return None


def a_secret_is_missing(resource: Resource, seen: Surroundings) -> Finding | None:
    missing = [s.name for s in seen.secrets if s.version is None]
    if not missing:
        return None
    return Finding(
        Reason.SECRET_MISSING,
        f"there is no Secret {' and no Secret '.join(missing)} in namespace "
        f"{resource.metadata.namespace}: create it, or correct the reference",
    )


def a_child_is_refused(resource: Resource, seen: Surroundings) -> Finding | None:
    for refusal in seen.refusals:
        return Finding(
            Reason.PODS_NOT_CREATED,
            f"the API server refuses the {refusal.kind} {refusal.name}: {refusal.message}. "
            "Correct what it names, in the spec or in the cluster; it is tried again",
        )
    return None


def pods_are_refused(relay: OutboxRelay, seen: Seen) -> Finding | None:
    live = seen.child("Deployment", child_name(relay, "relay")) or {}
    for condition in live.get("status", {}).get("conditions") or ():
        if condition["type"] == "ReplicaFailure" and condition["status"] == "True":
            return Finding(
                Reason.PODS_NOT_CREATED,
                f"Kubernetes makes no more pods: {condition.get('message', '')}",
            )
    return None


def an_image_is_not_pulled(resource: Resource, seen: Seen) -> Finding | None:
    for pod, waiting in _waiting(seen):
        if waiting.reason in NOT_PULLED:
            return Finding(
                Reason.IMAGE_NOT_PULLED,
                f"pod {pod.name} cannot have its image ({waiting.message or waiting.reason}): "
                "check spec.pod.image and spec.pod.imagePullSecrets",
            )
    return None


def a_secret_is_malformed(resource: Resource, seen: Seen) -> Finding | None:
    found = [f'secret "{s.name}" not found' for s in seen.secrets if s.version is not None]
    for pod, waiting in _waiting(seen):
        if waiting.message in found:
            continue  # it was just made, and the kubelet has not looked again
        if waiting.reason == "CreateContainerConfigError":
            return Finding(
                Reason.SECRET_MALFORMED,
                f"pod {pod.name} cannot be set up: {waiting.message}. Put that key into the "
                "Secret, or correct the reference",
            )
    return None


def a_pod_finds_no_node(resource: Resource, seen: Seen) -> Finding | None:
    for pod in seen.pods:
        if pod.unschedulable is not None:
            return Finding(
                Reason.PODS_NOT_SCHEDULED,
                f"no node takes pod {pod.name}: {pod.unschedulable}",
            )
    return None


def a_pod_is_not_set_up(relay: OutboxRelay, seen: Seen, now: datetime) -> Finding | None:
    """A Secret that lacks a key ends here if it is mounted: of Secrets we read no more than that
    they are there. Where it is a variable, the kubelet says so in the pod's status."""
    for pod in seen.pods:
        if pod.leaving or pod.held_since is None or now - pod.held_since < SET_UP:
            continue
        keys = {f"{ref.key} of Secret {ref.name}": None for ref in secret_files(relay).values()}
        most_likely = f". Most likely a key is missing: there must be {', '.join(keys)}"
        return Finding(
            Reason.PODS_NOT_SET_UP,
            f"pod {pod.name} has had a node since {pod.held_since:%H:%M:%S} UTC, where a volume "
            f"cannot be mounted or the network is not there{most_likely if keys else ''}; the end "
            f"of `kubectl describe pod -n {relay.metadata.namespace} {pod.name}` says what it is",
        )
    return None


def a_migration_failed(relay: OutboxRelay, seen: Seen, now: datetime) -> Finding | None:
    return _ended(
        relay,
        seen,
        now,
        Reason.MIGRATION_FAILED,
        "the schema could not be brought up to date: container migrate of pod {pod} ended with "
        "{code} ({cause}); its log tells more",
        "migrate",
    )


def a_pod_crashes(relay: OutboxRelay, seen: Seen, now: datetime) -> Finding | None:
    return _ended(
        relay,
        seen,
        now,
        Reason.PODS_CRASHING,
        "pod {pod} ended with {code} ({cause}) and is started again: see `kubectl logs --previous "
        f"-n {relay.metadata.namespace} {{pod}}`",
    )


def _ended(
    relay: OutboxRelay,
    seen: Seen,
    now: datetime,
    reason: Reason,
    otherwise: str,
    container: str | None = None,
) -> Finding | None:
    """What the first container that ended badly said last; `otherwise`, where it said nothing."""
    for pod in seen.pods:
        for stopped in pod.stopped:
            if container not in (None, stopped.container) or not _counts(pod, stopped, now):
                continue
            if stopped.words is not None:
                words = stopped.words
                return Finding(words.reason, words.message + _pinned(relay, words.reason))
            told = otherwise.format(pod=pod.name, code=stopped.exit_code, cause=stopped.cause)
            return Finding(reason, told)
    return None


def _pinned(relay: OutboxRelay, reason: str) -> str:
    """An image that the resource names may be older than the operator that writes its settings."""
    image = relay.spec.pod.image
    if image is None or reason != RelayReason.SETTINGS_INVALID:
        return ""
    return (
        f"; if {image} (spec.pod.image) is older than the operator, name a newer one, or leave out "
        "of the spec what it does not know"
    )


def _counts(pod: Pod, stopped: Stopped, now: datetime) -> bool:
    """One that crashes again and again is ready in between, and yet not well: it would come and go
    with every round. But what it said of its surroundings is over when it is ready."""
    if pod.leaving and stopped.exit_code in TOLD_TO:
        return False
    if stopped.back_since is None:
        return True
    ours = stopped.words is None or stopped.words.reason == RelayReason.DEFECT
    return ours and now - stopped.back_since < WELL_AGAIN


def a_pod_reports_trouble(relay: OutboxRelay, seen: Seen) -> Finding | None:
    """Only of pods that are not ready: the kubelet has looked twice, so this does not flap."""
    for pod in seen.pods:
        if pod.ready or pod.leaving or pod.report is None:
            continue
        for what, text in pod.report.troubles.items():
            reason = pod.report.reasons.get(what, _usual(what))
            if reason not in (RelayReason.STARTING, RelayReason.DRAINING):
                return Finding(reason, _with_cure(reason, text))
    return None


def a_rollout_is_stuck(relay: OutboxRelay, seen: Seen) -> Finding | None:
    """The last resort: no pod gives a reason."""
    if not is_overdue(relay, seen):
        return None
    namespace, name = relay.metadata.namespace, child_name(relay, "relay")
    return Finding(
        Reason.ROLLOUT_STUCK,
        f"new pods have not become ready for {PROGRESS_DEADLINE // 60} minutes; those of before "
        f"stay meanwhile. `kubectl describe deployment -n {namespace} {name}` and its pods show "
        "how far it is; correct the spec, or set it back",
    )


def is_overdue(relay: OutboxRelay, seen: Seen) -> bool:
    """The Deployment's controller has seen no progress for the time that we give it."""
    live = seen.child("Deployment", child_name(relay, "relay")) or {}
    return any(
        c["type"] == "Progressing" and c.get("reason") == "ProgressDeadlineExceeded"
        for c in live.get("status", {}).get("conditions") or ()
    )


def _with_cure(reason: str, text: str) -> str:
    cure = CURES.get(reason)
    return f"{text}; {cure}: events are kept, and go out when it is back" if cure else text


def _usual(what: str) -> str:
    """Where a relay of an older version gives no reason."""
    return Reason.BROKER_UNREACHABLE if what == "broker" else Reason.STORE_UNREACHABLE


def _waiting(seen: Seen) -> list[tuple[Pod, Waiting]]:
    return [(pod, waiting) for pod in seen.pods for waiting in pod.waiting]


def first_finding(relay: OutboxRelay, seen: Seen, now: datetime) -> Finding | None:
    checks: tuple[Check, ...] = (
        the_operator_holds_back,
        a_name_is_taken,
        a_secret_is_missing,
        a_child_is_refused,
        pods_are_refused,
        an_image_is_not_pulled,
        a_secret_is_malformed,
        a_pod_finds_no_node,
        partial(a_pod_is_not_set_up, now=now),
        partial(a_migration_failed, now=now),
        partial(a_pod_crashes, now=now),
        a_pod_reports_trouble,
        a_rollout_is_stuck,
    )
    return next((f for check in checks if (f := check(relay, seen))), None)

"""
Checks of a relay: what is wrong with it, the most specific first. Each returns a Finding or None.

The checks that all kinds share are in `shared.checks`; `first_finding` puts them all in order.
"""

from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial

from outbox_core.contract.reasons import ProcessReason
from outbox_operator.relay.children.deployment import PROGRESS_DEADLINE_SECONDS
from outbox_operator.relay.seen import RelaySeen
from outbox_operator.relay.spec.resource import OutboxRelay
from outbox_operator.relay.spec.settings import secret_files
from outbox_operator.shared.checks import (
    Finding,
    a_child_is_refused,
    a_name_is_taken,
    a_pod_finds_no_node,
    a_secret_is_malformed,
    a_secret_is_missing,
    an_image_is_not_pulled,
    the_operator_holds_back,
)
from outbox_operator.shared.names import child_name
from outbox_operator.shared.reasons import Reason
from outbox_operator.shared.seen import Pod, Stopped

SET_UP_TIME = timedelta(minutes=1)
"""How long a node may take for a pod's volumes and network; usually seconds. The kubelet itself
gives up after two minutes, keeps trying, and gives the reason only in an Event of the pod."""

RECOVERED_AFTER = timedelta(minutes=10)
"""How long a container that has ended more than once must run before it counts as recovered. The
kubelet resets its back-off after the same time."""
STOP_EXIT_CODES = frozenset({137, 143})
"""Exit codes of containers that were killed or asked to stop."""

CURES: dict[str, str] = {
    ProcessReason.STORE_UNREACHABLE: "check that PostgreSQL runs and that pods may connect to it",
    ProcessReason.BROKER_UNREACHABLE: "check that the broker runs and that pods may connect to it",
}
"""For problems whose cure the relay's own message does not name."""


Check = Callable[[OutboxRelay, RelaySeen], Finding | None]


def pods_are_refused(relay: OutboxRelay, seen: RelaySeen) -> Finding | None:
    live = seen.child("Deployment", child_name(relay, "relay")) or {}
    for condition in live.get("status", {}).get("conditions") or ():
        if condition["type"] == "ReplicaFailure" and condition["status"] == "True":
            return Finding(
                Reason.PODS_NOT_CREATED,
                f"Kubernetes cannot create pods: {condition.get('message', '')}",
            )
    return None


def a_pod_is_not_set_up(relay: OutboxRelay, seen: RelaySeen, now: datetime) -> Finding | None:
    """This finds a mounted Secret that lacks a key: of Secrets we only read whether they exist. If
    the key is for a variable, the kubelet reports it in the pod's status."""
    for pod in seen.pods:
        if pod.terminating or pod.held_since is None or now - pod.held_since < SET_UP_TIME:
            continue
        keys = {f"{ref.key} of Secret {ref.name}": None for ref in secret_files(relay).values()}
        most_likely = f". Most likely a key is missing; the pod needs {', '.join(keys)}"
        return Finding(
            Reason.PODS_NOT_SET_UP,
            f"pod {pod.name} has had a node since {pod.held_since:%H:%M:%S} UTC, but a volume "
            f"cannot be mounted or the network is missing{most_likely if keys else ''}; the end of "
            f"`kubectl describe pod -n {relay.metadata.namespace} {pod.name}` shows the cause",
        )
    return None


def a_migration_failed(relay: OutboxRelay, seen: RelaySeen, now: datetime) -> Finding | None:
    return _ended(
        relay,
        seen,
        now,
        Reason.MIGRATION_FAILED,
        "the schema could not be brought up to date: container migrate of pod {pod} ended with "
        "{code} ({cause}); check its log",
        "migrate",
    )


def a_pod_crashes(relay: OutboxRelay, seen: RelaySeen, now: datetime) -> Finding | None:
    return _ended(
        relay,
        seen,
        now,
        Reason.PODS_CRASHING,
        "pod {pod} ended with {code} ({cause}) and is restarted: check `kubectl logs --previous "
        f"-n {relay.metadata.namespace} {{pod}}`",
    )


def _ended(
    relay: OutboxRelay,
    seen: RelaySeen,
    now: datetime,
    reason: Reason,
    otherwise: str,
    container: str | None = None,
) -> Finding | None:
    """The termination message of the first container that ended with an error; `otherwise` if it
    left none."""
    for pod in seen.pods:
        for stopped in pod.stopped:
            if container not in (None, stopped.container) or not _counts(pod, stopped, now):
                continue
            if stopped.words is not None:
                words = stopped.words
                return Finding(words.reason, words.message + _pinned(relay, words.reason))
            text = otherwise.format(pod=pod.name, code=stopped.exit_code, cause=stopped.cause)
            return Finding(reason, text)
    return None


def _pinned(relay: OutboxRelay, reason: str) -> str:
    """An image pinned in the resource may be older than the operator that writes its settings."""
    image = relay.spec.pod.image
    if image is None or reason != ProcessReason.SETTINGS_INVALID:
        return ""
    return (
        f"; if {image} (spec.pod.image) is older than the operator, use a newer image, or remove "
        "from the spec what it does not know"
    )


def _counts(pod: Pod, stopped: Stopped, now: datetime) -> bool:
    """A container that keeps crashing is ready in between, but has not recovered: otherwise the
    finding would come and go with every crash. A problem of its surroundings that it reported is
    over when it is ready."""
    if pod.terminating and stopped.exit_code in STOP_EXIT_CODES:
        return False
    if stopped.back_since is None:
        return True
    ours = stopped.words is None or stopped.words.reason == ProcessReason.DEFECT
    return ours and now - stopped.back_since < RECOVERED_AFTER


def a_pod_reports_trouble(relay: OutboxRelay, seen: RelaySeen) -> Finding | None:
    """Only pods that are not ready count: the kubelet has probed twice, so this does not flap."""
    for pod in seen.pods:
        if pod.ready or pod.terminating or pod.report is None:
            continue
        for what, text in pod.report.troubles.items():
            reason = pod.report.reasons.get(what, _default_reason(what))
            if reason not in (ProcessReason.STARTING, ProcessReason.DRAINING):
                return Finding(reason, _with_cure(reason, text))
    return None


def a_rollout_is_stuck(relay: OutboxRelay, seen: RelaySeen) -> Finding | None:
    """The last resort, if no pod gives a reason."""
    if not is_overdue(relay, seen):
        return None
    namespace, name = relay.metadata.namespace, child_name(relay, "relay")
    return Finding(
        Reason.ROLLOUT_STUCK,
        f"new pods have not become ready for {PROGRESS_DEADLINE_SECONDS // 60} minutes; the old "
        f"ones keep running. `kubectl describe deployment -n {namespace} {name}`, and describe its "
        "pods, to find the cause; correct the spec, or revert it",
    )


def is_overdue(relay: OutboxRelay, seen: RelaySeen) -> bool:
    """The Deployment's controller has seen no progress within the deadline that we set."""
    live = seen.child("Deployment", child_name(relay, "relay")) or {}
    return any(
        c["type"] == "Progressing" and c.get("reason") == "ProgressDeadlineExceeded"
        for c in live.get("status", {}).get("conditions") or ()
    )


def _with_cure(reason: str, text: str) -> str:
    cure = CURES.get(reason)
    return f"{text}; {cure}. Events are kept, and go out when it is back" if cure else text


def _default_reason(what: str) -> str:
    """For an older relay, which gives no reason."""
    if what == "broker":
        return ProcessReason.BROKER_UNREACHABLE
    return ProcessReason.STORE_UNREACHABLE


def first_finding(relay: OutboxRelay, seen: RelaySeen, now: datetime) -> Finding | None:
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

"""
Checks that are the same for every kind: each returns a Finding or None.

Each kind asks them in its own order, beside checks of its own. A message says what is wrong and
what to do; it is read by somebody who was just woken up.
"""

from dataclasses import dataclass

from outbox_operator.shared.conditions import RelayCondition
from outbox_operator.shared.objects import Resource
from outbox_operator.shared.reasons import Reason
from outbox_operator.shared.seen import Pod, SeenWithPods, Surroundings, Waiting

NOT_PULLED = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"}
)


@dataclass(frozen=True)
class Finding:
    reason: str
    message: str


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


def an_image_is_not_pulled(resource: Resource, seen: SeenWithPods) -> Finding | None:
    for pod, waiting in _waiting(seen):
        if waiting.reason in NOT_PULLED:
            return Finding(
                Reason.IMAGE_NOT_PULLED,
                f"pod {pod.name} cannot have its image ({waiting.message or waiting.reason}): "
                "check spec.pod.image and spec.pod.imagePullSecrets",
            )
    return None


def a_secret_is_malformed(resource: Resource, seen: SeenWithPods) -> Finding | None:
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


def a_pod_finds_no_node(resource: Resource, seen: SeenWithPods) -> Finding | None:
    for pod in seen.pods:
        if pod.unschedulable is not None:
            return Finding(
                Reason.PODS_NOT_SCHEDULED,
                f"no node takes pod {pod.name}: {pod.unschedulable}",
            )
    return None


def _waiting(seen: SeenWithPods) -> list[tuple[Pod, Waiting]]:
    return [(pod, waiting) for pod in seen.pods for waiting in pod.waiting]

"""
Checks that every kind shares: each returns a Finding or None.

Each kind runs them in its own order, together with checks of its own. A message states what is
wrong and what to do: its reader may have just been woken up.
"""

from dataclasses import dataclass

from outbox_operator.shared.objects import Resource
from outbox_operator.shared.reasons import Reason
from outbox_operator.shared.seen import Ends, Pod, SeenWithPods, Surroundings, Waiting

NOT_PULLED = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"}
)


@dataclass(frozen=True)
class Finding:
    reason: str
    message: str


def the_operator_holds_back(resource: Resource, seen: Surroundings) -> Finding | None:
    found = seen.restraint
    if found is None or found.ends is not Ends.BY_A_PERSON:
        return None
    return Finding(found.reason, found.message)


def a_name_is_taken(resource: Resource, seen: Surroundings) -> Finding | None:
    for refusal in seen.refusals:
        if refusal.taken:
            return Finding(
                Reason.NAME_TAKEN,
                f"{refusal.kind} {refusal.name} already exists, and {refusal.message}: it is left "
                f"alone. Delete or rename it, or give this {resource.kind} another name",
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
            "Correct what it names, in the spec or in the cluster; the operator tries again",
        )
    return None


def an_image_is_not_pulled(resource: Resource, seen: SeenWithPods) -> Finding | None:
    for pod, waiting in _waiting(seen):
        if waiting.reason in NOT_PULLED:
            return Finding(
                Reason.IMAGE_NOT_PULLED,
                f"the image of pod {pod.name} cannot be pulled "
                f"({waiting.message or waiting.reason}): check spec.pod.image and "
                "spec.pod.imagePullSecrets",
            )
    return None


def a_secret_is_malformed(resource: Resource, seen: SeenWithPods) -> Finding | None:
    found = [f'secret "{s.name}" not found' for s in seen.secrets if s.version is not None]
    for pod, waiting in _waiting(seen):
        if waiting.message in found:
            continue  # it was just created, and the kubelet has not checked again
        if waiting.reason == "CreateContainerConfigError":
            return Finding(
                Reason.SECRET_MALFORMED,
                f"pod {pod.name} cannot be set up: {waiting.message}. Add that key to the "
                "Secret, or correct the reference",
            )
    return None


def a_pod_finds_no_node(resource: Resource, seen: SeenWithPods) -> Finding | None:
    for pod in seen.pods:
        if pod.unschedulable is not None:
            return Finding(
                Reason.PODS_NOT_SCHEDULED,
                f"no node accepts pod {pod.name}: {pod.unschedulable}",
            )
    return None


def _waiting(seen: SeenWithPods) -> list[tuple[Pod, Waiting]]:
    return [(pod, waiting) for pod in seen.pods for waiting in pod.waiting]

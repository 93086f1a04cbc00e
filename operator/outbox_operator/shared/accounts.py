"""The ServiceAccount of a resource's pods, the same for all kinds."""

from outbox_operator.kinds import CUSTOM_KINDS
from outbox_operator.shared.names import Manifest, owned
from outbox_operator.shared.objects import Resource
from outbox_operator.shared.pod_settings import PodSettings


def build_account(resource: Resource, pod: PodSettings) -> Manifest:
    """It has no rights. Its annotations are what a cloud maps to an identity of its own; ours
    come last, because the operator recognises its children by them."""
    metadata = owned(resource, CUSTOM_KINDS[resource.kind].role)
    annotations = {**pod.service_account_annotations, **metadata["annotations"]}
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {**metadata, "annotations": annotations},
        "automountServiceAccountToken": False,  # a pod that needs the token requests it itself
    }

"""
What the operator's installation forbids in resources: fields of a spec that give pods more than
their defaults, by their names in the chart's `policy.*.forbid`.

For a resource that sets one, nothing new is created; what runs keeps running. The chart can make
the API server refuse the same (`policy.admission`).
"""

from collections.abc import Iterable, Mapping
from typing import Any

from outbox_operator.kinds import CUSTOM_KINDS
from outbox_operator.settings import OperatorSettings
from outbox_operator.shared.managed import Managed
from outbox_operator.shared.reasons import Reason
from outbox_operator.shared.seen import Ends, Restraint

FIELDS: dict[str, tuple[str, ...]] = {
    "image": ("pod.image",),
    # Both choose an identity: who may not name an account may not turn ours into another either.
    "serviceAccountName": ("pod.serviceAccountName", "pod.serviceAccountAnnotations"),
    "env": ("pod.env",),
    "volumes": ("pod.volumes", "pod.volumeMounts"),
    "sparkConf": ("sparkConf",),
    "podSettings": ("pod",),
}
"""By name in the policy: the fields of `spec` that it covers."""


def forbidden_fields(spec: Mapping[str, Any], names: Iterable[str]) -> list[str]:
    """Forbidden fields that differ from their default, as people write them. An empty security
    context differs: it means none."""
    wanted = [path for name in names for path in FIELDS[name]]
    found = {path for path in wanted if _at(spec, path) is not None}
    if "pod" in found:
        found = (found - {"pod"}) | {f"pod.{name}" for name in spec["pod"]}
    return sorted(f"spec.{path}" for path in found)


def _at(spec: Mapping[str, Any], path: str) -> Any:
    found: Any = spec
    for name in path.split("."):
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def what_is_forbidden(resource: Managed, operator: OperatorSettings) -> Restraint | None:
    kind = CUSTOM_KINDS[resource.kind]
    names = operator.forbid.get(kind.name)
    if not names:
        return None
    spec = resource.spec.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    found = forbidden_fields(spec, names)
    if not found:
        return None
    cure = "leave it out" if kind.editable else f"create another {kind.name} without it"
    return Restraint(
        Ends.BY_A_PERSON,
        Reason.FORBIDDEN,
        f"{' and '.join(found)} may not be set here: {cure}, or ask the person who installed the "
        f"operator to allow it (the chart's policy.{kind.policy}.forbid). What runs keeps running; "
        "nothing new is created",
    )

"""
What whoever installed the operator forbids in resources: fields of a spec that make pods more than
they would be, by their names in the chart's `policy.*.forbid`.

Nothing new is made for a resource that sets one; what runs goes on. The chart can have the API
server refuse the same (`policy.admission`).
"""

from collections.abc import Iterable, Mapping
from typing import Any

from outbox_operator.resources.conditions import Reason, RelayCondition
from outbox_operator.resources.relay import OutboxRelay
from outbox_operator.resources.replay import OutboxReplay
from outbox_operator.seen import Restraint
from outbox_operator.settings import OperatorSettings

FIELDS: dict[str, tuple[str, ...]] = {
    "image": ("pod.image",),
    "serviceAccountName": ("pod.serviceAccountName",),
    "env": ("pod.env",),
    "volumes": ("pod.volumes", "pod.volumeMounts"),
    "sparkConf": ("sparkConf",),
    "podSettings": ("pod",),
}
"""By name, which fields of `spec` it is about."""


def forbidden_fields(spec: Mapping[str, Any], names: Iterable[str]) -> list[str]:
    """Those that differ from their default, as people write them. An empty security context does:
    it means none."""
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


def what_is_forbidden(
    resource: OutboxRelay | OutboxReplay, operator: OperatorSettings
) -> Restraint | None:
    is_relay = isinstance(resource, OutboxRelay)
    names = operator.relay_forbid if is_relay else operator.replay_forbid
    if not names:
        return None
    spec = resource.spec.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    found = forbidden_fields(spec, names)
    if not found:
        return None
    value = f"policy.{'relays' if is_relay else 'replays'}.forbid"
    cure = "leave it out" if is_relay else "create another OutboxReplay without it"
    return Restraint(
        RelayCondition.DEGRADED,
        "True",
        Reason.FORBIDDEN,
        f"{' and '.join(found)} may not be set here: {cure}, or ask whoever installed the operator "
        f"to allow it (the chart's {value}). What runs goes on; nothing new is made",
    )


def without_forbidden(relay: OutboxRelay) -> OutboxRelay:
    """One that is being deleted, as the operator would make its pods: what is forbidden must not
    run, and yet the database must forget the relay."""
    return relay.model_copy(
        update={"spec": relay.spec.model_copy(update={"pod": type(relay.spec.pod)()})}
    )

"""
Which children a relay has now: all of them, with the number of pods that it should have. A relay
that is being deleted only gets what retires it in the database.

They are created in this order: what others refer to comes first.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from outbox_operator.relay.children.access import build_disruption_budget, build_service_account
from outbox_operator.relay.children.config_map import build_config_map
from outbox_operator.relay.children.deployment import build_deployment
from outbox_operator.relay.children.network import build_network_policy, build_service
from outbox_operator.relay.children.reaper import build_reaper
from outbox_operator.relay.children.retirement import build_retirement
from outbox_operator.relay.decide.deletion import (
    is_being_deleted,
    is_collected,
    is_drained,
    is_retiring,
)
from outbox_operator.relay.seen import RelaySeen
from outbox_operator.relay.spec.resource import OutboxRelay
from outbox_operator.settings import OperatorSettings
from outbox_operator.shared.names import Manifest
from outbox_operator.shared.seen import Secret


@dataclass(frozen=True)
class RelayChildren:
    wanted: list[Manifest]
    unwanted: list[tuple[str, str]]
    """Kind and name. Removed at once: what pods of an older revision may need is in
    `leftovers`."""


def decide_children(
    relay: OutboxRelay,
    seen: RelaySeen,
    operator: OperatorSettings,
    replicas: int,
    *,
    suspend_reaper: bool = False,
) -> RelayChildren:
    """The reaper of a new relay is not suspended: see `decide.reaping`."""
    if is_being_deleted(relay):
        return RelayChildren(last_children(relay, seen, operator), [])
    config = build_config_map(relay)
    name = config["metadata"]["name"]
    optional = [
        (build_network_policy(relay), relay.spec.network_policy.enabled),
        (build_disruption_budget(relay), replicas > 1),
    ]
    wanted = [
        *accounts(relay),
        *(child for child, is_wanted in optional if is_wanted),
        config,
        build_service(relay),
        build_deployment(relay, operator, replicas, name, secrets_digest(seen.secrets)),
        build_reaper(relay, operator, name, suspended=relay.spec.paused or suspend_reaper),
    ]
    return RelayChildren(
        wanted,
        [(c["kind"], c["metadata"]["name"]) for c, is_wanted in optional if not is_wanted],
    )


def lacks(seen: RelaySeen, children: RelayChildren) -> bool:
    """Whether one of the children does not exist yet."""
    return any(seen.child(c["kind"], c["metadata"]["name"]) is None for c in children.wanted)


def accounts(relay: OutboxRelay) -> list[Manifest]:
    """The ServiceAccount, unless the spec names another one."""
    return [build_service_account(relay)] if relay.spec.pod.service_account_name is None else []


def last_children(
    relay: OutboxRelay, seen: RelaySeen, operator: OperatorSettings
) -> list[Manifest]:
    """Of a relay that is being deleted. What is gone is not created again: the garbage collector,
    or the person who removed it, would have to remove it over and over."""
    if not is_retiring(relay) or is_collected(relay):
        return []
    config = build_config_map(relay)
    name = config["metadata"]["name"]
    at_rest = [
        build_deployment(relay, operator, 0, name, secrets_digest(seen.secrets)),
        build_reaper(relay, operator, name, suspended=True),
    ]
    wanted = [child for child in at_rest if is_kept(child, seen)]
    if not is_drained(relay, seen):
        return wanted
    policy = [build_network_policy(relay)] if relay.spec.network_policy.enabled else []
    return [*wanted, *accounts(relay), *policy, config, build_retirement(relay, operator, name)]


def is_kept(child: Manifest, seen: RelaySeen) -> bool:
    """Whether it exists, and is not being deleted."""
    live = seen.child(child["kind"], child["metadata"]["name"])
    return live is not None and "deletionTimestamp" not in live["metadata"]


def fixed_replicas(relay: OutboxRelay) -> int | None:
    """The number of pods, unless the autoscaler decides it."""
    if is_retiring(relay):
        return 0
    if relay.spec.paused:
        return min(1, relay.spec.replicas)  # one pod reports: backlog and lag stay visible
    return relay.spec.replicas if relay.spec.autoscaling is None else None


def secrets_digest(secrets: Sequence[Secret]) -> str:
    """Changes when a Secret does. A digest of versions, not of contents: a digest of a password
    would help to guess it."""
    text = ",".join(f"{s.name}={s.version}" for s in sorted(secrets, key=lambda s: s.name))
    return hashlib.sha256(text.encode()).hexdigest()[:16]

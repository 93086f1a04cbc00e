"""
Which children a relay has now: all of them, with the number of pods that it should have.

The order is that of their making: what others refer to comes first.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

from outbox_operator.children.access import build_disruption_budget, build_service_account
from outbox_operator.children.config_map import build_config_map, digest
from outbox_operator.children.deployment import build_deployment
from outbox_operator.children.names import Manifest, child_name
from outbox_operator.children.network import build_network_policy, build_service
from outbox_operator.children.reaper import build_reaper
from outbox_operator.children.retirement import build_retirement
from outbox_operator.resources.objects import Resource
from outbox_operator.resources.relay import OutboxRelay
from outbox_operator.seen import Secret, Seen
from outbox_operator.settings import OperatorSettings

RETIRE = "outbox.dev/retire"
"""The finalizer of a relay whose place in the database goes with it. There is no other."""


@dataclass(frozen=True)
class Children:
    wanted: list[Manifest]
    unwanted: list[tuple[str, str]]
    """Kind and name."""


def decide_children(
    relay: OutboxRelay, seen: Seen, operator: OperatorSettings, replicas: int
) -> Children:
    config = build_config_map(relay)
    budget = build_disruption_budget(relay)
    policy = build_network_policy(relay)
    account = build_service_account(relay)
    optional = [
        (account, relay.spec.pod.service_account_name is None),
        (policy, relay.spec.network_policy.enabled),
        (budget, replicas > 1),
    ]
    wanted = [
        *(child for child, is_wanted in optional if is_wanted),
        config,
        build_service(relay),
        build_deployment(relay, operator, replicas, digest(config), secrets_digest(seen.secrets)),
        build_reaper(relay, operator, suspended=relay.spec.paused or is_leaving(relay)),
    ]
    if is_leaving(relay) and is_drained(relay, seen):
        wanted.append(build_retirement(relay, operator))
    return Children(
        wanted,
        [(c["kind"], c["metadata"]["name"]) for c, is_wanted in optional if not is_wanted],
    )


def fixed_replicas(relay: OutboxRelay) -> int | None:
    """How many pods, where that is not the autoscaler's decision."""
    if is_leaving(relay):
        return 0
    if relay.spec.paused:
        return min(1, relay.spec.replicas)  # it watches: backlog and lag stay visible
    return relay.spec.replicas if relay.spec.autoscaling is None else None


def asked_replicas(relay: OutboxRelay, seen: Seen) -> int | None:
    """What the Deployment asks for at present."""
    live = seen.child("Deployment", child_name(relay, "relay"))
    return None if live is None else live["spec"].get("replicas", 1)


def is_leaving(relay: OutboxRelay) -> bool:
    return relay.metadata.deletion_timestamp is not None


def is_drained(relay: OutboxRelay, seen: Seen) -> bool:
    """No pod is left that could hold a claim."""
    return asked_replicas(relay, seen) in (0, None) and not seen.pods


def retirement(relay: OutboxRelay, seen: Seen) -> str | None:
    """How the Job that forgets the relay stands: Complete, Failed, or None while it is at work."""
    job = seen.child("Job", child_name(relay, "retire"))
    for condition in (job or {}).get("status", {}).get("conditions") or ():
        if condition["status"] == "True" and condition["type"] in ("Complete", "Failed"):
            kind: str = condition["type"]
            return kind
    return None


def decide_finalizers(relay: OutboxRelay, seen: Seen) -> list[str]:
    """Those that the resource should have. Only `deletionPolicy: Delete` needs one: everything
    else goes away with its owner."""
    others = [f for f in relay.metadata.finalizers if f != RETIRE]
    if relay.spec.deletion_policy != "Delete":
        return others
    if not is_leaving(relay):
        return [*others, RETIRE]
    if RETIRE not in relay.metadata.finalizers:
        return others  # one that is being deleted takes no new ones
    gone = retirement(relay, seen) == "Complete" or any(r.leaving for r in seen.refusals)
    return others if gone else [*others, RETIRE]


def how_to_let_go(resource: Resource) -> str | None:
    """Of a relay that is being deleted, and whose spec cannot be understood: nobody can make the
    database forget it, and it waits for that."""
    meta = resource.metadata
    if meta.deletion_timestamp is None or RETIRE not in meta.finalizers:
        return None
    patch = json.dumps({"metadata": {"finalizers": [f for f in meta.finalizers if f != RETIRE]}})
    return (
        "it is being deleted, and waits until the database has forgotten the relay, which takes a "
        f"valid spec; to let it go without that: kubectl patch outboxrelay -n {meta.namespace} "
        f"{meta.name} --type merge -p '{patch}'"
    )


def secrets_digest(secrets: Sequence[Secret]) -> str:
    """Changes when a Secret does. Of its version, not of its content: a digest of a password is
    something to guess passwords with."""
    text = ",".join(f"{s.name}={s.version}" for s in sorted(secrets, key=lambda s: s.name))
    return hashlib.sha256(text.encode()).hexdigest()[:16]

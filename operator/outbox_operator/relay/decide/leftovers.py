"""
Leftovers: what a relay had before its last change, and may be removed now.

A rollout may take long, or never succeed. Until then a pod of an older revision may have to be
created again, and needs its ConfigMap and ServiceAccount: they stay until every pod is a new one.
Called by the reconciler with what was seen after the children were written.
"""

from outbox_operator.relay.decide.children import RelayChildren
from outbox_operator.relay.decide.deletion import is_being_deleted
from outbox_operator.relay.decide.rollout import (
    account_in_use,
    config_in_use,
    count_pods,
    is_complete,
)
from outbox_operator.relay.seen import RelaySeen
from outbox_operator.relay.spec.resource import OutboxRelay
from outbox_operator.shared.names import child_name, service_account_of
from outbox_operator.shared.objects import Body

KEPT_CONFIG_MAPS = 3
"""How many ConfigMaps to keep of changes that never succeeded and that no pod uses now: the newest
ones, because a pod of one of them may be about to be created again. Somebody may try twenty changes
in a row."""

Name = tuple[str, str]
"""Kind and name of a child."""


def decide_leftovers(
    relay: OutboxRelay, seen: RelaySeen, children: RelayChildren, replicas: int
) -> list[Name]:
    if is_being_deleted(relay):
        return []  # all of them are deleted with the resource
    wanted = {(c["kind"], c["metadata"]["name"]) for c in children.wanted}
    used = {*seen.mounted, config_in_use(relay, seen)}
    unused = [n for n in _configs(relay, seen) if n not in wanted and n[1] not in used]
    if not is_complete(seen, count_pods(relay, seen, replicas)):
        good = relay.status.rolled_out.config_map if relay.status.rolled_out else None
        return [name for name in unused if name[1] != good][KEPT_CONFIG_MAPS:]
    account = ("ServiceAccount", child_name(relay, "relay"))
    named = {service_account_of(relay), account_in_use(relay, seen)}
    is_left = is_ours(relay, seen.child(*account)) and account[1] not in named
    return [*unused, *([account] if is_left and account not in wanted else [])]


def _configs(relay: OutboxRelay, seen: RelaySeen) -> list[Name]:
    """The newest first."""
    own = child_name(relay, "relay")
    found = {
        (kind, name): made
        for (kind, name), made in seen.children.items()
        # The first operators had a single ConfigMap of this name, and changed it.
        if kind == "ConfigMap"
        and (name == own or name.startswith(f"{own}-"))
        and is_ours(relay, made)
    }
    return sorted(found, key=lambda name: (_made_at(found[name]), name), reverse=True)


def is_ours(relay: OutboxRelay, child: Body | None) -> bool:
    """This relay owns it. One without an owner may be a person's copy."""
    owners = (child or {"metadata": {}})["metadata"].get("ownerReferences") or ()
    return any(owner["uid"] == relay.metadata.uid for owner in owners)


def _made_at(child: Body) -> str:
    at: str = child["metadata"].get("creationTimestamp", "")
    return at

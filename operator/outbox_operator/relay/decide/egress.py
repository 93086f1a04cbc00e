"""
Open egress: events choose the hosts that a relay connects to, and nothing around its pods limits
where that may lead.

Nothing fails, and the relay itself checks every host and address (`allowedHosts`,
`allowedNetworks`). So it is no trouble: `status` shows it while there is none, and `events`
announces it once. Judged by the spec alone, because most of what may limit pods (a service mesh,
policies of the network's own kinds, a firewall) cannot be seen from here.
"""

from outbox_operator.relay.spec.resource import EgressRule, NetworkPolicy, OutboxRelay
from outbox_operator.shared.checks import Finding
from outbox_operator.shared.reasons import Reason


def open_egress(relay: OutboxRelay) -> Finding | None:
    http, policy = relay.spec.publisher.http, relay.spec.network_policy
    if http is None or not http.hosts_from_events or limits(policy):
        return None
    enable = "" if policy.enabled else "set networkPolicy.enabled to true, and "
    return Finding(
        Reason.EGRESS_OPEN,
        "no problem is known, but events choose the hosts that this relay connects to, and no "
        "policy limits where its pods may connect to, should its own check of allowedHosts not be "
        f"enough: {enable}list in networkPolicy.egress the database and the networks of those "
        "hosts (an empty list adds to policies of your own, which allow the rest); or, if "
        "something else limits it, set networkPolicy.egressElsewhere to true",
    )


def limits(policy: NetworkPolicy) -> bool:
    if policy.egress_elsewhere:
        return True
    return policy.enabled and policy.egress is not None and not any(map(allows_all, policy.egress))


def allows_all(rule: EgressRule) -> bool:
    return not rule.to and not rule.ports  # to Kubernetes an empty list is as good as none

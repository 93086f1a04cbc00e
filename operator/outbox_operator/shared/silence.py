"""
Silence: pods that run, and whose port does not answer the operator. What that means, and the cure.

Used where figures are shown, of relays and of replays. Nothing depends on the answer: the kubelet
asks from the pod's own node, which no mesh and no policy prevents, and how a driver ends is in its
pod's status.
"""

from datetime import timedelta

from outbox_operator.shared.pod_parts import PORT

SILENT_AFTER = timedelta(minutes=1)
"""How long a driver may not answer before it is shown: it starts, or misses a look or two."""

CAUSE = (
    f"port {PORT} of the pod does not answer the operator: a NetworkPolicy, or a service mesh with "
    "strict mTLS, is in between. Let the operator in, or exempt that port from the mesh: for Istio "
    f'the annotation traffic.sidecar.istio.io/excludeInboundPorts: "{PORT}", for Linkerd '
    f'config.linkerd.io/skip-inbound-ports: "{PORT}", in spec.pod.annotations'
)

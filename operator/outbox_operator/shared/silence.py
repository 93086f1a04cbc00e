"""
Silence: running pods whose port does not answer the operator. The cause, and the cure.

Used where figures of relays and replays are shown. Nothing else depends on the answer: the kubelet
probes from the pod's own node, which no mesh and no policy prevents, and how a driver ended is in
its pod's status.
"""

from datetime import timedelta

from outbox_operator.shared.pod_parts import PORT

SILENT_AFTER = timedelta(minutes=1)
"""How long a driver may stay silent before that is shown: it may be starting, or have missed a
reconcile or two."""

CAUSE = (
    f"port {PORT} of the pod does not answer the operator, because a NetworkPolicy, or a service "
    "mesh with strict mTLS, blocks it. Let the operator in, or exempt that port from the mesh: for "
    f'Istio the annotation traffic.sidecar.istio.io/excludeInboundPorts: "{PORT}", for Linkerd '
    f'config.linkerd.io/skip-inbound-ports: "{PORT}", in spec.pod.annotations'
)

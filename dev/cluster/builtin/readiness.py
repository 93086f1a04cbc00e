"""
Is the node Ready? Asked of the API server, as its administrator.

Called by `builtin_node` when all components are well: they are so before the node is.
"""

import json
import ssl
import time
import urllib.request
from pathlib import Path
from typing import Any

from ..errors import ClusterError
from ..instance import NODE, Instance

READY_WITHIN_SECONDS = 120.0


def wait_until_ready(instance: Instance, pki: Path, since: float) -> None:
    """`since`: what kubelet reported before its restart does not count."""
    after = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(since))
    deadline = time.monotonic() + READY_WITHIN_SECONDS
    while (verdict := judge(_node(instance, pki), after)) != "Ready":
        if time.monotonic() > deadline:
            raise ClusterError(
                f"the node is not Ready after {READY_WITHIN_SECONDS:g} s: {verdict}",
                f"see {instance.folder}/log/kubelet.log and containerd.log",
            )
        time.sleep(0.1)


def judge(node: dict[str, Any], after: str) -> str:
    """Ready, or why not."""
    conditions = {c["type"]: c for c in node.get("status", {}).get("conditions", [])}
    ready = conditions.get("Ready")
    if ready is None:
        return str(node.get("error", "it has not registered"))
    if ready["lastHeartbeatTime"] < after:  # of one format, so they compare as text
        return "it has not reported since"
    return "Ready" if ready["status"] == "True" else str(ready["message"])


def _node(instance: Instance, pki: Path) -> dict[str, Any]:
    context = ssl.create_default_context(cafile=str(pki / "ca.crt"))
    context.load_cert_chain(pki / "admin.crt", pki / "admin.key")
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
    )
    try:
        with opener.open(f"{instance.server}/api/v1/nodes/{NODE}", timeout=5) as answer:
            node: dict[str, Any] = json.load(answer)
            return node
    except OSError as error:
        return {"error": str(error)}

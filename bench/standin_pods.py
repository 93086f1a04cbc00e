"""
Pods that answer, without containers: five hundred would not fit on one machine.

Used by `operator_scale`. Kubernetes makes the pods, and no node takes them. This module acts as
their node: it binds them to a Node of its own, reports them ready, and answers in their place,
each at an address of its own on the loopback interface. What the operator sees and does is the same
as with relays that have nothing to publish.
"""

import asyncio
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from ipaddress import IPv4Address, IPv4Interface
from typing import Any

import kubernetes.dynamic

from outbox_core.contract.report import Backlog, Busy, Rates, Report

NODE = "bench-standin"
SELECTOR = {"outbox.dev/bench": "nowhere"}
"""No node has this label, so the scheduler leaves the pods alone."""
RANGE = IPv4Interface("198.18.0.1/16")
"""Reserved for benchmarks (RFC 2544)."""
PORT = 8080
HEARTBEAT_SECONDS = 10.0
UNTYPED: Any = kubernetes


def address(n: int) -> str:
    return str(IPv4Address(int(RANGE.network.network_address) + 256 + n))


class StandinPods:
    def __init__(self, core: Any, namespace: str, count: int) -> None:
        self._core, self._namespace, self._count = core, namespace, count
        self._leases = UNTYPED.client.CoordinationV1Api(core.api_client)
        self._ready: set[str] = set()
        self.asked = 0
        """How many times the pods were asked, all together."""

    @contextmanager
    def running(self) -> Iterator["StandinPods"]:
        """Addresses, a node, and answers. Call `make_ready` until all pods are."""
        stop = threading.Event()
        _ip("add", str(RANGE), "dev", "lo")
        serving = threading.Thread(target=lambda: asyncio.run(self._serve(stop)), daemon=True)
        beating = threading.Thread(target=self._beat, args=(stop,), daemon=True)
        try:
            self._core.create_node({"metadata": {"name": NODE}})
            serving.start()
            beating.start()
            yield self
        finally:
            stop.set()
            with suppress(UNTYPED.client.ApiException):
                self._core.delete_node(NODE)  # then the garbage collector removes its pods
            _ip("del", str(RANGE), "dev", "lo")

    def make_ready(self) -> bool:
        """Those that are new. Returns whether all are ready."""
        for pod in self._core.list_namespaced_pod(self._namespace).items:
            name = pod.metadata.name
            if name in self._ready or pod.metadata.deletion_timestamp:
                continue
            target = {"apiVersion": "v1", "kind": "Node", "name": NODE}
            self._core.create_namespaced_pod_binding(
                name,
                self._namespace,
                {"metadata": {"name": name}, "target": target},
                _preload_content=False,  # the client cannot read the answer
            )
            status = _status(address(len(self._ready)), [c.name for c in pod.spec.containers])
            self._core.patch_namespaced_pod_status(name, self._namespace, {"status": status})
            self._ready.add(name)
        return len(self._ready) >= self._count

    def _beat(self, stop: threading.Event) -> None:
        """As a kubelet does: without it Kubernetes would take the node for lost."""
        while not stop.is_set():
            now = datetime.now(UTC).isoformat().replace("+00:00", "Z")
            ready = {
                "type": "Ready",
                "status": "True",
                "reason": "Standin",
                "lastHeartbeatTime": now,
            }
            spec = {"holderIdentity": NODE, "leaseDurationSeconds": 40, "renewTime": now}
            lease = {"metadata": {"name": NODE, "namespace": "kube-node-lease"}, "spec": spec}
            with suppress(UNTYPED.client.ApiException):
                self._core.patch_node_status(NODE, {"status": {"conditions": [ready]}})
            try:
                self._leases.patch_namespaced_lease(NODE, "kube-node-lease", lease)
            except UNTYPED.client.ApiException:
                with suppress(UNTYPED.client.ApiException):
                    self._leases.create_namespaced_lease("kube-node-lease", lease)
            stop.wait(HEARTBEAT_SECONDS)

    async def _serve(self, stop: threading.Event) -> None:
        hosts = [address(n) for n in range(self._count)]
        server = await asyncio.start_server(self._answer, hosts, PORT)
        async with server:
            while not stop.is_set():
                await asyncio.sleep(0.5)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            self.asked += 1
            content = _report().model_dump_json(by_alias=True, indent=2).encode()
            length = f"Content-Length: {len(content)}".encode()
            kind = b"Content-Type: application/json"
            head = b"\r\n".join([b"HTTP/1.0 200 OK", kind, length, b"", b""])
            writer.write(head + content)
            await writer.drain()
        writer.close()


def _report() -> Report:
    """Of a relay that has nothing to do. What differs from report to report does here as well."""
    now = time.time()
    return Report(
        version="bench",
        relay="bench",
        claimed_by="bench",
        ordering="None",
        ready=True,
        troubles={},
        breaker="closed",
        lanes=0,
        backlog=Backlog(
            pending=0, claimed=0, dead=0, oldest_pending_seconds=0.0, approximate=False
        ),
        published=1000,
        rates=Rates(published=0.0, failed=0.0, dead=0.0, seconds=round(60 + now % 5, 1)),
        busy=Busy(store=round(0.01 + now % 0.01, 3), publish=0.0, workers=2),
        top_errors=[],
        observed_at=datetime.now(UTC),
    )


def _status(ip: str, containers: list[str]) -> dict[str, Any]:
    at = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    names = ("PodReadyToStartContainers", "Initialized", "ContainersReady", "Ready")
    return {
        "phase": "Running",
        "podIP": ip,
        "podIPs": [{"ip": ip}],
        "conditions": [{"type": n, "status": "True", "lastTransitionTime": at} for n in names],
        "containerStatuses": [
            {
                "name": name,
                "image": "standin",
                "imageID": "standin",
                "ready": True,
                "restartCount": 0,
                "state": {"running": {"startedAt": at}},
            }
            for name in containers
        ],
    }


def _ip(*words: str) -> None:
    subprocess.run(["ip", "address", *words], check=True)

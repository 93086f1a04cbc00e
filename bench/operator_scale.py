"""
`make bench-operator`: many OutboxRelays on one operator, on a real API server.

How long until all are reconciled, what a restart of the operator costs, and what it costs when
nothing happens: without pods, and with one each that answers. Five hundred would not fit on one
machine, so `standin_pods` answers in their place; they are Kubernetes' work, and not measured. All
other children of a relay exist, seven objects each.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import kubernetes.dynamic

from bench.meter import TICK_SECONDS, peak_memory
from bench.report import Report
from bench.standin_pods import SELECTOR, StandinPods
from dev.cluster import binaries
from dev.cluster.clusters import chosen, exports

CRDS = Path(__file__).resolve().parent.parent / "crds"
NAMESPACE = "bench-operator"
API = "outbox.dev/v1alpha1"
TIMEOUT_SECONDS = 600.0
UNTYPED: Any = kubernetes

BARS = {"seconds": 120.0, "idle % of a core": 1.0}


def relay(n: int) -> dict[str, Any]:
    return {
        "apiVersion": API,
        "kind": "OutboxRelay",
        "metadata": {"name": f"relay-{n}"},
        "spec": {
            "store": {"postgresql": {"dsnSecretRef": {"name": "store"}}},
            "publisher": {"kafka": {"bootstrapServers": "kafka:9092"}},
            "replicas": 0,
            "reaper": {"schedule": "0 0 1 1 *"},
            "pod": {"nodeSelector": SELECTOR},
        },
    }


class Api:
    def __init__(self, kubeconfig: Path) -> None:
        client = UNTYPED.config.new_client_from_config(str(kubeconfig))
        self.core = UNTYPED.client.CoreV1Api(client)
        self._dynamic = UNTYPED.dynamic.DynamicClient(client)

    @property
    def relays(self) -> Any:
        return self._dynamic.resources.get(api_version=API, kind="OutboxRelay")

    def settled(self) -> int:
        listed = self.relays.get(namespace=NAMESPACE).to_dict()["items"]
        return sum(
            (r.get("status") or {}).get("observedGeneration") == r["metadata"]["generation"]
            for r in listed
        )

    def ready(self) -> int:
        """Relays whose one pod is ready, and whose figures are in the status."""
        listed = self.relays.get(namespace=NAMESPACE).to_dict()["items"]
        states = [r.get("status") or {} for r in listed]
        return sum(s.get("pods") == "1/1" and "observedAt" in s for s in states)

    def ask_for_pods(self, count: int) -> None:
        how = "application/merge-patch+json"
        body = {"spec": {"replicas": 1}}
        for n in range(count):
            name = f"relay-{n}"
            self.relays.patch(name=name, namespace=NAMESPACE, body=body, content_type=how)

    def versions(self) -> dict[str, str]:
        listed = self.relays.get(namespace=NAMESPACE).to_dict()["items"]
        return {r["metadata"]["name"]: r["metadata"]["resourceVersion"] for r in listed}


@contextmanager
def operator(environ: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    settings = {"OUTBOX_OPERATOR_LOG_LEVEL": "warning", "OUTBOX_OPERATOR_PORT": "0"}
    process = subprocess.Popen(
        [sys.executable, "-m", "outbox_operator"], env={**environ, **settings}
    )
    try:
        yield process
    finally:
        process.terminate()
        process.wait(30)


def cpu(process: "subprocess.Popen[bytes]") -> float:
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * TICK_SECONDS


def wait(done: Callable[[], bool]) -> float:
    begin = time.monotonic()
    while not done():
        if time.monotonic() - begin > TIMEOUT_SECONDS:
            raise SystemExit(f"not within {TIMEOUT_SECONDS:g} s")
        time.sleep(0.5)
    return time.monotonic() - begin


def is_quiet(api: Api) -> bool:
    before = api.versions()
    time.sleep(10)
    return api.versions() == before


def measure_idle(api: Api, process: "subprocess.Popen[bytes]", seconds: float) -> dict[str, float]:
    wait(lambda: is_quiet(api))  # Kubernetes itself has not finished with them yet
    written, before = api.versions(), cpu(process)
    time.sleep(seconds)
    share = (cpu(process) - before) / seconds * 100
    return {
        "idle % of a core": round(share, 2),
        "resources written": sum(v != written[k] for k, v in api.versions().items()),
    }


def measure_with_pods(
    api: Api, process: "subprocess.Popen[bytes]", pods: StandinPods, count: int, seconds: float
) -> dict[str, float]:
    def all_ready() -> bool:
        return pods.make_ready() and api.ready() == count

    api.ask_for_pods(count)
    wait(all_ready)
    asked = pods.asked
    found = measure_idle(api, process, seconds)
    return {**found, "times asked": pods.asked - asked}


def measure(count: int, idle: float, idle_with_pods: float, report: Report) -> None:
    cluster = chosen(os.environ, loudly=True)
    was_there = cluster.is_there
    cluster.up()
    environ = {**os.environ, **exports(cluster, os.environ)}
    api = Api(cluster.kubeconfig)
    try:
        subprocess.run(
            [
                binaries.client() / "kubectl",
                "apply",
                "--server-side",
                "--force-conflicts",
                "-f",
                CRDS,
            ],
            env=environ,
            check=True,
            stdout=subprocess.DEVNULL,
        )
        api.core.create_namespace({"metadata": {"name": NAMESPACE}})
        api.core.create_namespaced_secret(
            NAMESPACE, {"metadata": {"name": "store"}, "stringData": {"dsn": "unused"}}
        )
        report.log(f"making {count} OutboxRelays")
        for n in range(count):
            api.relays.create(body=relay(n), namespace=NAMESPACE)
        with operator(environ) as process:
            seconds = wait(lambda: api.settled() == count)
            report.add(
                "operator",
                f"{count} new relays",
                {
                    "seconds": round(seconds, 1),
                    "CPU s": round(cpu(process), 1),
                    "MB": round(peak_memory(process.pid)),
                },
            )
            report.add("operator", "no pods", measure_idle(api, process, idle))
            with StandinPods(api.core, NAMESPACE, count).running() as pods:
                row = measure_with_pods(api, process, pods, count, idle_with_pods)
                report.add("operator", "a pod each", row)
        with operator(environ) as process:
            before_all = api.versions()
            time.sleep(idle / 2)
            report.add(
                "operator",
                "restarted",
                {
                    "CPU s": round(cpu(process), 1),
                    "resources written": sum(v != before_all[k] for k, v in api.versions().items()),
                },
            )
    finally:
        api.core.delete_namespace(NAMESPACE)
        wait(lambda: NAMESPACE not in {n.metadata.name for n in api.core.list_namespace().items})
        if not was_there:
            cluster.down()
    report.judge(
        f"operator: seconds until {count} new relays are reconciled",
        report.median("operator", f"{count} new relays", "seconds"),
        BARS["seconds"],
    )
    for case in ("no pods", "a pod each"):
        report.judge(
            f"operator: % of a core while nothing happens, {case}",
            report.median("operator", case, "idle % of a core"),
            BARS["idle % of a core"],
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--relays", type=int, default=500)
    parser.add_argument("--idle", type=float, default=60.0, help="seconds to watch it do nothing")
    parser.add_argument(
        "--idle-with-pods",
        type=float,
        default=660.0,
        help="the same with pods; above ten minutes, so that each observedAt is written again",
    )
    given = parser.parse_args()
    report = Report("operator", {"relays": given.relays})
    measure(given.relays, given.idle, given.idle_with_pods, report)
    report.print()
    print(f"written to {report.write()}")


if __name__ == "__main__":
    main()

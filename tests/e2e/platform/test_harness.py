"""
The built-in node itself: up, healed, restarted, refused, and down without a trace.

On an instance of its own, so that the cluster of the other tests is not disturbed.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dev.cluster.builtin import cgroups, supervision
from dev.cluster.builtin import node as builtin_node
from dev.cluster.builtin.components import Component, stages
from dev.cluster.builtin.node import BuiltInNode
from dev.cluster.clusters import Cluster
from dev.cluster.errors import ClusterError
from dev.cluster.instance import Instance, from_environment
from dev.cluster.tiny_image import PAUSE
from dev.services import wait_until
from fixtures.cluster import Kube, Namespace

pytestmark = [
    pytest.mark.timeout(400),
    pytest.mark.skipif(
        sys.platform != "linux" or os.geteuid() != 0, reason="the built-in node: Linux and root"
    ),
]

INSTANCE = from_environment({"OUTBOX_CLUSTER_INSTANCE": "harness"})


SETTINGS = [
    name
    for name in (
        *("vm/overcommit_memory", "kernel/panic", "kernel/panic_on_oops"),
        *("net/ipv4/ip_forward", "net/netfilter/nf_conntrack_max"),
    )
    if Path("/proc/sys", name).exists()
]
"""Those that there are before any node is: the last comes with its module, which stays loaded."""

END_WITH = {
    "kube-apiserver": {"kube-controller-manager", "kube-scheduler"},
    "etcd": {"kube-apiserver", "kube-controller-manager", "kube-scheduler"},
}
"""Who may end of its own accord when another is gone; Kubernetes means them to be restarted."""


@pytest.fixture(scope="module")
def shared() -> Iterator[BuiltInNode]:
    node = BuiltInNode(INSTANCE)
    node.down(any_owner=True)  # what a killed run of these tests left
    yield node
    node.down()


@pytest.fixture
def node(shared: BuiltInNode) -> BuiltInNode:
    """It is up when a test begins; the test may leave it in any state."""
    shared.up()
    return shared


def pids(instance: Instance) -> dict[str, int]:
    files = (instance.folder / "pids").iterdir()
    return {file.name: int(file.read_text().split()[0]) for file in files}


def traces(instance: Instance) -> list[str]:
    """Looked for without the tool's own help."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            told = (process / "cgroup").read_text() + (process / "cmdline").read_text()
            state = (process / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if state not in "ZX" and (instance.cgroup in told or str(instance.folder) in told):
            found.append(f"process {process.name}: {told}")
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    found += [f"mount {line}" for line in mounts if instance.name in line]
    network = subprocess.run(
        "ip -o link; ip -4 route", shell=True, capture_output=True, text=True
    ).stdout
    prefix = str(instance.range).rpartition(".0.0/")[0] + "."
    words = (instance.link, prefix)
    found += [line for line in network.splitlines() if any(word in line for word in words)]
    found += map(str, Path("/sys/fs/cgroup").rglob(f"{instance.cgroup}*"))
    found += [str(instance.folder)] if instance.folder.exists() else []
    return found


def host() -> dict[str, str]:
    """What Kubernetes would change on a machine that it has for itself."""
    folders = ["/var/lib/kubelet", "/var/lib/cni", "/run/containerd", "/run/netns"]
    folders += ["/var/log/pods", "/var/log/containers", "/opt/containerd", "/opt/cni"]
    rules = subprocess.run("iptables-save", capture_output=True, text=True).stdout
    return {
        **{folder: str(Path(folder).exists()) for folder in folders},
        **{name: Path("/proc/sys", name).read_text() for name in SETTINGS},
        "firewall": "\n".join(line for line in rules.splitlines() if not line.startswith("#")),
    }


def test_up_twice_is_up_once(node: BuiltInNode) -> None:
    before = pids(INSTANCE)
    node.up()
    assert pids(INSTANCE) == before
    assert node.status()


def test_the_whole_node_counts_for_more_than_one_process(node: BuiltInNode) -> None:
    found = cgroups.hierarchies()
    group = found.controllers["cpu"] / INSTANCE.cgroup
    file, usual = ("cpu.shares", 1024) if found.version == 1 else ("cpu.weight", 100)
    assert int((group / file).read_text()) == cgroups.SHARE * usual


def test_a_reader_that_has_seen_enough_is_no_error(node: BuiltInNode) -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        asked = subprocess.run(
            [sys.executable, "-m", "dev.cluster", "status"],
            cwd=builtin_node.CLONE,
            env={**os.environ, "OUTBOX_CLUSTER": "node", "OUTBOX_CLUSTER_INSTANCE": INSTANCE.name},
            stdout=write,
            stderr=subprocess.PIPE,
            text=True,
        )
    finally:
        os.close(write)
    assert asked.stderr == ""
    assert asked.returncode == 128 + signal.SIGPIPE


@pytest.mark.parametrize("name", [c.name for stage in stages(INSTANCE) for c in stage])
def test_a_killed_component_is_healed_and_no_other_touched(node: BuiltInNode, name: str) -> None:
    before = pids(INSTANCE)
    os.kill(before[name], signal.SIGKILL)
    wait_until(lambda: f"/{INSTANCE.cgroup}/" not in _cgroup_of(before[name]), 30, "its end")

    node.up()

    anew = {n for n, pid in pids(INSTANCE).items() if pid != before[n]}
    assert anew - END_WITH.get(name, set()) == {name}
    assert node.status()


def test_a_hung_component_is_healed(node: BuiltInNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "HUNG_AFTER_SECONDS", 5.0)
    before = pids(INSTANCE)
    os.kill(before["kube-scheduler"], signal.SIGSTOP)
    node.up()
    assert pids(INSTANCE)["kube-scheduler"] != before["kube-scheduler"]
    assert node.status()


def test_pods_outlive_all_of_kubernetes(node: BuiltInNode) -> None:
    names = run_two_pods(node)
    started = {pid for pid in cgroups.Cgroup(INSTANCE.cgroup).processes() if is_pause(pid)}
    for pid in pids(INSTANCE).values():
        os.kill(pid, signal.SIGKILL)

    node.up()

    with on(node) as here:
        assert {pod.metadata.name for pod in here.pods()} == names
    assert {pid for pid in started if is_pause(pid)} == started


def test_a_node_that_lost_its_network_is_restarted_with_what_was_in_it(node: BuiltInNode) -> None:
    names = run_two_pods(node)
    subprocess.run(["ip", "link", "delete", INSTANCE.link], check=True)

    node.up()

    assert node.status()
    with on(node) as here:
        here.wait(lambda: all(map(runs_anew, here.pods())), 120, "the same pods, running anew")
        assert {pod.metadata.name for pod in here.pods()} == names


def test_another_clone_is_refused_and_told_whose_it_is(node: BuiltInNode, tmp_path: Path) -> None:
    other = BuiltInNode(INSTANCE, owner=tmp_path)
    for attempt in (other.up, other.down):
        with pytest.raises(ClusterError, match=rf"started it\n.*make -C {builtin_node.CLONE} "):
            attempt()
    assert node.status()
    other.down(any_owner=True)
    assert traces(INSTANCE) == []


def test_a_range_in_use_is_refused_before_anything_is_made(shared: BuiltInNode) -> None:
    shared.down()
    taken = str(INSTANCE.range).replace("0.0/16", "7.0/24")
    subprocess.run(["ip", "route", "add", "blackhole", taken], check=True)
    try:
        with pytest.raises(ClusterError, match=f"in use: {taken}[^$]*OUTBOX_CLUSTER_RANGE"):
            shared.up()
    finally:
        subprocess.run(["ip", "route", "delete", "blackhole", taken], check=True)
    assert traces(INSTANCE) == []


def test_a_component_that_does_not_start_says_why_and_leaves_nothing(
    shared: BuiltInNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared.down()
    broken = Component("etcd", ("sh", "-c", "echo no space on the moon; exit 1"), "http://[::1]:9")
    monkeypatch.setattr(builtin_node, "stages", lambda _: [[broken]])
    with pytest.raises(ClusterError, match=r"etcd ended early:\nno space on the moon"):
        shared.up()
    assert traces(INSTANCE) == []


def test_down_leaves_nothing(shared: BuiltInNode) -> None:
    shared.down()
    before = host()
    shared.up()
    run_two_pods(shared)
    assert host() == before
    shared.down()
    assert traces(INSTANCE) == []
    assert host() == before
    shared.down()  # once more does no harm


def test_the_cluster_beside_it_is_left_alone(cluster: Cluster, node: BuiltInNode) -> None:
    run_two_pods(node)
    node.down()
    assert cluster.status()


@pytest.mark.parametrize(
    "seen", ["stamp.json", "pki.partial", "ns/mnt", "pids/etcd", "pids/kubelet"]
)
def test_a_start_that_was_killed_is_repaired_by_the_next(shared: BuiltInNode, seen: str) -> None:
    shared.down()
    begin_and_kill(seen)
    shared.up()
    assert shared.status()


def test_a_start_that_was_killed_can_be_taken_down(shared: BuiltInNode) -> None:
    shared.down()
    begin_and_kill("pids/containerd")
    shared.down()
    assert traces(INSTANCE) == []


def begin_and_kill(seen: str) -> None:
    """`up`, killed as soon as there is this file."""
    program = f"""
from dev.cluster.builtin.node import BuiltInNode
from dev.cluster.instance import from_environment
BuiltInNode(from_environment({{"OUTBOX_CLUSTER_INSTANCE": {INSTANCE.name!r}}})).up()
"""
    starting = subprocess.Popen([sys.executable, "-c", program])
    try:
        wait_until((INSTANCE.folder / seen).exists, 60, seen)
    finally:
        starting.kill()
        starting.wait()


@contextmanager
def on(node: BuiltInNode) -> Iterator[Namespace]:
    with Kube(node) as kube:
        yield Namespace(kube, "default")


def run_two_pods(node: BuiltInNode) -> set[str]:
    labels = {"app": "pause"}
    pod = {"containers": [{"name": "main", "image": PAUSE}]}
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "pause"},
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }
    with on(node) as here:
        here.apply(deployment)
        here.wait_for_rollout("pause", 120)
        return {pod.metadata.name for pod in here.pods()}


def runs_anew(pod: Any) -> bool:
    return all(c.ready and c.restart_count for c in pod.status.container_statuses)


def is_pause(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().startswith("/pause")
    except OSError:
        return False


def _cgroup_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cgroup").read_text()
    except OSError:
        return ""

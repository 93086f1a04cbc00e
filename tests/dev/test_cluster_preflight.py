"""Each obstacle is named with its cure, all at once."""

from dataclasses import replace
from pathlib import Path

import pytest

from dev.cluster.builtin.cgroups import hierarchies
from dev.cluster.builtin.preflight import DISK, Facts, problems
from dev.cluster.instance import from_environment

GOOD = Facts(
    root=True,
    missing_programs=(),
    missing_controllers=(),
    cgroup_error="",
    failed_trials={},
    routes={"default": "eth0", "10.86.0.0/16": "vpn0", "192.168.1.0/24": "eth0"},
    free=DISK,
)
MAIN = from_environment({})


def test_nothing_is_in_the_way_of_a_good_machine() -> None:
    assert problems(MAIN, GOOD) == []


@pytest.mark.parametrize(
    ("facts", "cause", "cure"),
    [
        (replace(GOOD, root=False), "needs root", "sudo make cluster"),
        (
            replace(GOOD, missing_programs=("ctr", "/usr/lib/cni/ptp")),
            "not installed: ctr, /usr/lib/cni/ptp",
            "apt-get install containerd containernetworking-plugins",
        ),
        (
            replace(GOOD, missing_controllers=("memory", "pids")),
            "no cgroup controller for: memory, pids",
            "mount cgroup2",
        ),
        (replace(GOOD, cgroup_error="Read-only file system"), "Read-only", "remount"),
        (
            replace(GOOD, failed_trials={"virtual links": "Unknown device type"}),
            "does not do virtual links: Unknown device type",
            "modprobe veth",
        ),
        (
            replace(GOOD, routes={"10.87.3.0/24": "vpn0"}),
            "10.87.0.0/16 is in use: 10.87.3.0/24 by vpn0",
            "OUTBOX_CLUSTER_RANGE=",
        ),
        (replace(GOOD, routes={"10.0.0.0/8": "vpn0"}), "by vpn0", "OUTBOX_CLUSTER_RANGE="),
        (replace(GOOD, free=DISK - 1), "GB are free for /var/lib/outbox-cluster", "another disk"),
    ],
)
def test_an_obstacle_is_named_with_its_cure(facts: Facts, cause: str, cure: str) -> None:
    (problem,) = problems(MAIN, facts)
    assert cause in problem.cause
    assert cure in problem.cure


def test_all_obstacles_are_told_at_once() -> None:
    facts = replace(GOOD, missing_programs=("runc",), routes={"10.87.0.0/16": "eth1"}, free=0)
    assert len(problems(MAIN, facts)) == 3


V1 = """\
35 31 0:30 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid - cgroup cgroup rw,cpu,cpuacct
36 31 0:31 / /sys/fs/cgroup/memory rw,nosuid shared:9 - cgroup cgroup rw,memory
37 31 0:32 / /sys/fs/cgroup/pids rw,nosuid - cgroup cgroup rw,pids
38 31 0:33 / /sys/fs/cgroup/unified rw,nosuid - cgroup2 cgroup2 rw
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard
"""


def test_cgroups_of_version_1_are_recognised() -> None:
    found = hierarchies(V1)
    assert found.version == 1
    assert found.missing == []
    assert str(found.controllers["cpu"]) == "/sys/fs/cgroup/cpu,cpuacct"
    assert "/sys/fs/cgroup/unified" in map(str, found.roots)


def test_cgroups_of_version_2_are_recognised(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")
    found = hierarchies(f"30 23 0:26 / {tmp_path} rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n")
    assert found.version == 2
    assert found.missing == []
    assert found.roots == [tmp_path]


def test_no_cgroups_at_all_are_told_as_missing() -> None:
    assert hierarchies("").missing == ["cpu", "memory", "pids"]

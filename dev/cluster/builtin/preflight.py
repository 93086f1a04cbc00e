"""
Can the built-in node run here? Everything that is in its way at once, before anything is made.

Called by `builtin_node` before a fresh start. `look` gathers, and leaves nothing behind;
`problems` is pure and judges.
"""

import os
import shutil
import subprocess
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv4Network
from pathlib import Path

from ..errors import ClusterError
from ..instance import STATE, Instance
from . import cgroups
from .components import CNI_PLUGINS
from .namespaces import routes
from .supervision import ENVIRONMENT

PROGRAMS = {
    "containerd": "containerd",
    "ctr": "containerd",
    "runc": "runc",
    "iptables": "iptables",
    "ip": "iproute2",
    "openssl": "openssl",
    "nsenter": "util-linux",
    "unshare": "util-linux",
    "mount": "mount",
}
"""By program the Debian package that brings it; `dev/setup cluster` installs the same."""

GIGABYTE = 1 << 30
DISK = 5 * GIGABYTE
"""The project's images unpacked are most of it, those of Spark and PostgreSQL and Kafka."""


@dataclass(frozen=True)
class Trial:
    command: str
    """Shows that the kernel has it, in namespaces that end with the command."""
    cure: str


TRIALS = {
    "virtual links": Trial("ip link add trial0 type veth peer name trial1", "modprobe veth"),
    "overlay file systems": Trial(
        'mkdir -p l u w m && mount -t overlay none m -o "lowerdir=l,upperdir=u,workdir=w"',
        f"modprobe overlay; or, as they do not go on top of each other, make {STATE} "
        "a mount of a disk",
    ),
    "address translation": Trial(
        "iptables -t nat -A POSTROUTING -m comment --comment trial -m mark --mark 1 -j MASQUERADE",
        "modprobe -a nf_tables nft_compat xt_MASQUERADE xt_mark xt_comment",
    ),
}


@dataclass(frozen=True)
class Facts:
    root: bool
    missing_programs: tuple[str, ...]
    missing_controllers: tuple[str, ...]
    cgroup_error: str
    failed_trials: dict[str, str]
    """By feature: what the kernel answered."""
    routes: dict[str, str]
    """By destination the link; without our own."""
    free: int


@dataclass(frozen=True)
class Problem:
    cause: str
    cure: str


def check(instance: Instance) -> None:
    if found := problems(instance, look(instance)):
        lines = [f"- {problem.cause}\n  {problem.cure}" for problem in found]
        raise ClusterError("the built-in node cannot run here:\n" + "\n".join(lines))


def problems(instance: Instance, facts: Facts) -> list[Problem]:
    if not facts.root:
        return [Problem("it needs root", "run it as root: sudo make cluster")]
    found = []
    if facts.missing_programs:
        packages = {PROGRAMS.get(p, "containernetworking-plugins") for p in facts.missing_programs}
        found.append(
            Problem(
                f"not installed: {', '.join(facts.missing_programs)}",
                f"run dev/setup cluster, or apt-get install {' '.join(sorted(packages))}",
            )
        )
    if facts.missing_controllers:
        found.append(
            Problem(
                f"no cgroup controller for: {', '.join(facts.missing_controllers)}",
                "mount cgroup2 on /sys/fs/cgroup; in a container, start it privileged and with "
                "the host's cgroups (docker run --privileged --cgroupns=host)",
            )
        )
    elif facts.cgroup_error:
        found.append(
            Problem(
                f"no cgroup can be made: {facts.cgroup_error}",
                "remount /sys/fs/cgroup writable; in a container, start it privileged",
            )
        )
    for feature, said in facts.failed_trials.items():
        found.append(
            Problem(
                f"the kernel does not do {feature}: {said}",
                f"{TRIALS[feature].cure}; in a container, start it privileged; "
                "or use another cluster: OUTBOX_CLUSTER=existing",
            )
        )
    for route, link in facts.routes.items():
        if route != "default" and IPv4Network(route, strict=False).overlaps(instance.range):
            found.append(
                Problem(
                    f"network range {instance.range} is in use: {route} by {link}",
                    "choose another /16, for example: export OUTBOX_CLUSTER_RANGE=10.99.0.0/16",
                )
            )
    if facts.free < DISK:
        found.append(
            Problem(
                f"{facts.free / GIGABYTE:.1f} GB are free for {STATE}, "
                f"{DISK // GIGABYTE} are needed",
                f"free some space, or make {STATE} a mount of another disk",
            )
        )
    return found


def look(instance: Instance) -> Facts:
    if os.geteuid() != 0:
        return Facts(False, (), (), "", {}, {}, 0)
    missing = [name for name in PROGRAMS if not shutil.which(name, path=ENVIRONMENT["PATH"])]
    plugins = ("ptp", "host-local", "portmap", "loopback")
    missing += [f"{CNI_PLUGINS}/{name}" for name in plugins if not Path(CNI_PLUGINS, name).exists()]
    usable = not missing
    return Facts(
        root=True,
        missing_programs=tuple(missing),
        missing_controllers=tuple(cgroups.hierarchies().missing),
        cgroup_error=_try_cgroup(),
        failed_trials=_try_kernel(instance) if usable else {},
        routes=_foreign_routes(instance) if usable else {},
        free=shutil.disk_usage(_nearest(STATE)).free,
    )


def _try_cgroup() -> str:
    roots = cgroups.hierarchies().roots
    try:
        for root in roots:
            trial = root / f"outbox-trial-{os.getpid()}"
            trial.mkdir()
            trial.rmdir()
    except OSError as error:
        return str(error)
    return ""


def _try_kernel(instance: Instance) -> dict[str, str]:
    failed = {}
    # In the very folder that will be used: overlays do not go on every file system.
    instance.folder.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(prefix="trial.", dir=instance.folder) as folder:
            for feature, trial in TRIALS.items():
                tried = subprocess.run(
                    ["unshare", "--net", "--mount", "sh", "-euc", trial.command],
                    cwd=folder,
                    env=ENVIRONMENT,
                    capture_output=True,
                    text=True,
                )
                if tried.returncode != 0:
                    failed[feature] = (tried.stderr.strip().splitlines() or ["no reason given"])[0]
    finally:
        with suppress(OSError):  # unless there is more in it than our trial
            instance.folder.rmdir()
            STATE.rmdir()
    return failed


def _foreign_routes(instance: Instance) -> dict[str, str]:
    return {destination: link for destination, link in routes() if link != instance.link}


def _nearest(path: Path) -> Path:
    return path if path.exists() else _nearest(path.parent)

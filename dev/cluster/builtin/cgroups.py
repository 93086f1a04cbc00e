"""
The instance's cgroup: every process of the node is in it, components, shims and pods alike.

So the node's end is the end of this group: nothing that ever forked can be missed, and nobody
else's process can be hit. Called by `builtin_node` and `supervision`.
"""

import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ..errors import ClusterError

MOUNTS = Path("/proc/self/mountinfo")
NEEDED = ("cpu", "memory", "pids")
COMPONENTS = "components"
"""Where our own processes are; Kubernetes makes its `kubepods` beside it."""
SHARE = 4
"""Of the processors' time, where a single process outside has 1. With 1 the whole node, with a
broker and a database in its pods, would get as little as one process of the tests beside it."""


@dataclass(frozen=True)
class Hierarchies:
    version: int
    controllers: dict[str, Path]
    """By controller the mount of its hierarchy; version 2 has only one."""
    unified: Path | None
    """Where version 2 is mounted. Beside version 1 it has no controllers, but runc still makes
    its groups there."""

    @property
    def roots(self) -> list[Path]:
        return sorted({*self.controllers.values(), *filter(None, [self.unified])})

    @property
    def missing(self) -> list[str]:
        return [name for name in NEEDED if name not in self.controllers]


def hierarchies(mountinfo: str | None = None) -> Hierarchies:
    """Version 1 if the memory controller is there, as for Kubernetes itself."""
    v1: dict[str, Path] = {}
    v2: dict[str, Path] = {}
    unified = None
    if mountinfo is None:
        mountinfo = MOUNTS.read_text() if MOUNTS.exists() else ""  # no Linux, no cgroups
    for line in mountinfo.splitlines():
        front, _, back = line.partition(" - ")
        mount, (filesystem, _, options) = Path(front.split()[4]), back.split(maxsplit=2)
        if filesystem == "cgroup":
            # What is no controller ("rw", "xattr") does no harm here: nobody asks for it.
            v1 |= {option: mount for option in options.split(",") if option != "rw"}
        elif filesystem == "cgroup2":
            unified = mount
            with suppress(OSError):
                names = (mount / "cgroup.controllers").read_text().split()
                v2 = dict.fromkeys(names, mount)
    return Hierarchies(1, v1, unified) if "memory" in v1 else Hierarchies(2, v2, unified)


class Cgroup:
    def __init__(self, name: str) -> None:
        self.name = name
        self._hierarchies = hierarchies()

    @property
    def procs(self) -> Path:
        """The file that a process writes itself into."""
        return self._tracked / COMPONENTS / "cgroup.procs"

    @property
    def _tracked(self) -> Path:
        """Containers are in every hierarchy, so one is enough to find them all."""
        return self._hierarchies.controllers["pids"] / self.name

    def create(self) -> None:
        for root in self._hierarchies.roots:
            (root / self.name / COMPONENTS).mkdir(parents=True, exist_ok=True)
            if self._hierarchies.version == 2:  # children have only what their parent hands on
                names = (root / "cgroup.controllers").read_text().split()
                for folder in (root, root / self.name):
                    wanted = " ".join(f"+{name}" for name in names)
                    (folder / "cgroup.subtree_control").write_text(wanted)
        is_old = self._hierarchies.version == 1
        file, usual = ("cpu.shares", 1024) if is_old else ("cpu.weight", 100)
        (self._hierarchies.controllers["cpu"] / self.name / file).write_text(str(SHARE * usual))

    def processes(self) -> list[int]:
        pids: list[int] = []
        if "pids" in self._hierarchies.controllers:
            for procs in self._tracked.rglob("cgroup.procs"):
                with suppress(OSError):  # a container that just ended
                    pids += map(int, procs.read_text().split())
        return pids

    def kill(self, within: float = 20) -> None:
        """Kill all of it, again and again until nothing is left: killing races with forking."""
        deadline = time.monotonic() + within
        while pids := self.processes():
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"processes {pids} do not die", "see /proc/PID/stack for what they wait for"
                )
            for pid in pids:
                self._kill_one(pid)
            time.sleep(0.02)

    def remove(self, within: float = 10) -> None:
        deadline = time.monotonic() + within
        while not self._try_to_remove():
            if time.monotonic() > deadline:
                raise ClusterError(f"cgroup {self.name} cannot be removed")
            # A component whose starter was killed may join only now, after all were dead. Once the
            # group is gone it cannot, and ends.
            for pid in self.processes():
                self._kill_one(pid)
            time.sleep(0.02)  # the last process is dead, but not yet buried

    def _try_to_remove(self) -> bool:
        for root in self._hierarchies.roots:
            folders = [root / self.name, *(root / self.name).rglob("*")]
            for folder in sorted(folders, reverse=True):  # children first
                if folder.is_dir():
                    try:
                        folder.rmdir()
                    except OSError:
                        return False
        return True

    def _kill_one(self, pid: int) -> None:
        # The descriptor first, then the check: from here on the number cannot become another's.
        try:
            handle = os.pidfd_open(pid)
        except OSError:
            return
        try:
            with suppress(OSError):
                if f"/{self.name}/" in Path(f"/proc/{pid}/cgroup").read_text():
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
        finally:
            os.close(handle)

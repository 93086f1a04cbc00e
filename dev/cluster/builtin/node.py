"""
The built-in node: all of Kubernetes as processes of this machine, in a room of their own.

The parts are `preflight` (can it be), `stamp` (what has to be done), `namespaces` (the room),
`cgroups` (whose process), `components` (what runs), `supervision` (that it runs), `pki` and
`readiness`. Here they become up, down, status and load. Chosen by `clusters`; also called by
the tests of this tool.
"""

import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from .. import binaries
from ..errors import ClusterError
from ..image import Image
from ..instance import STATE, Instance
from ..progress import say, step
from ..tiny_image import PAUSE
from . import pki, preflight, stamp
from .cgroups import Cgroup
from .components import Component, files, stages
from .lock import alone
from .namespaces import Namespaces, run
from .readiness import wait_until_ready
from .stamp import Stamp
from .supervision import Supervisor, is_well

CLONE = Path(__file__).resolve().parents[3]
PASSES = 5
DIGEST = "outbox-operator/digest"
"""The label by which containerd shows us what it has."""


class BuiltInNode:
    def __init__(self, instance: Instance, owner: Path = CLONE) -> None:
        self.instance = instance
        self.folder = instance.folder
        self.kubeconfig = self.folder / "pki" / "admin.kubeconfig"
        self._owner = str(owner)
        self._room = Namespaces(instance)
        self._cgroup = Cgroup(instance.cgroup)

    @property
    def is_there(self) -> bool:
        return self.folder.exists()

    def prepare(self) -> None:
        if not self._room.intact:
            preflight.check(self.instance)  # before the long build, not after it
        binaries.node()
        binaries.tiny(PAUSE)

    def up(self) -> None:
        """From whatever state to a node that is Ready, by the shortest way."""
        with alone(self.instance.cgroup):
            self._refuse_a_strangers(to="start")
            self.prepare()
            programs = binaries.node()
            wanted = self._wanted(programs)
            plan = stamp.plan(stamp.read(self.folder), wanted, self._room.intact)
            match plan.way:
                case "heal":
                    self._heal()
                case "restart":
                    with step(f"restarting the node: {plan.reason}"):
                        self._stop()
                        self._start(wanted, programs)
                case "fresh":
                    self._start_afresh(wanted, programs, plan.reason)
        say(f"the node is Ready: Kubernetes {binaries.required('k8s.io/kubernetes')}")

    def down(self, any_owner: bool = False) -> None:
        with alone(self.instance.cgroup):
            if not self.is_there and not self._remains():
                say("there is no node to take down")
                return
            if os.geteuid() != 0:
                raise ClusterError("only root can take the node down", "sudo make cluster-down")
            if not any_owner:
                self._refuse_a_strangers(to="take down")
            with step("taking the node down"):
                self._clear()

    def status(self) -> bool:
        """Print it; is all well?"""
        if not self.is_there:
            say(f"no node: {self.folder} does not exist")
            return False
        was = stamp.read(self.folder)
        print(f"node {self.instance.name}, {self.instance.range}, of {was.owner if was else '?'}")
        supervisor, all_well = self._supervisor(), self._room.intact
        for component in self._components():
            pid = supervisor.pid(component)
            well = pid is not None and is_well(component)
            all_well = all_well and well
            state = "well" if well else "does not answer" if pid else "dead: make cluster heals it"
            print(f"  {component.name:<24} {pid or '-':>8}  {state}")
        return all_well

    def load(self, images: Iterable[Image]) -> None:
        for image in images:
            selector = f'name=={image.reference},labels."{DIGEST}"=={image.digest}'
            if self._ctr("images", "list", "--quiet", selector).strip():
                continue
            size = image.archive.stat().st_size >> 20
            with step(f"loading {image.reference}, {size} MB"):
                self._ctr("images", "import", str(image.archive))
                self._ctr("images", "label", image.reference, f"{DIGEST}={image.digest}")

    def reference(self, image: Image) -> str:
        return image.reference

    # The ways up

    def _start_afresh(self, wanted: Stamp, programs: Path, reason: str) -> None:
        self._clear()
        with step(f"starting the node in {self.folder}, about 10 s: {reason}"):
            try:
                self._start(wanted, programs)
            except BaseException:  # an interrupt too: nothing half-made is left behind
                self._clear()
                raise

    def _start(self, wanted: Stamp, programs: Path) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o700)
        stamp.write(self.folder, wanted)
        self._furnish(programs)
        pki.create(self.instance, self.folder / "pki")
        self._cgroup.create()
        self._room.create()  # last of what is made: a node that has it only needs to be healed
        self._bring_up()

    def _heal(self) -> None:
        begin = time.monotonic()
        healed = self._bring_up()
        if healed:
            say(f"started again: {', '.join(healed)} ({time.monotonic() - begin:.1f} s)")

    def _bring_up(self) -> list[str]:
        begin = time.time()
        healed: list[str] = []
        # Until nothing is left to do: the controllers end when they lose the API server, which
        # may be after we looked at them.
        for _ in range(PASSES):
            if not (started := self._one_pass()):
                break
            healed += started
        since = begin if "kubelet" in healed else 0
        wait_until_ready(self.instance, self.folder / "pki", since)
        return healed

    def _one_pass(self) -> list[str]:
        supervisor = self._supervisor()
        first, *others = stages(self.instance)
        started = supervisor.bring_up(first)
        self.load([binaries.tiny(PAUSE)])
        for stage in others:
            started += supervisor.bring_up(stage)
        return started

    def _furnish(self, programs: Path) -> None:
        """Everything that the components read, the binary included: the cache may be cleared."""
        for name, text in files(self.instance).items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        binary = self.folder / "bin" / "node"
        binary.parent.mkdir(exist_ok=True)
        binary.unlink(missing_ok=True)
        try:
            os.link(programs / "node", binary)
        except OSError:  # another disk
            shutil.copy2(programs / "node", binary)

    # The ways down

    def _clear(self) -> None:
        """Everything, whatever of it there is."""
        self._stop()
        if self.folder.exists():
            shutil.rmtree(self.folder)
        with suppress(OSError):
            STATE.rmdir()  # unless another instance lives there
        if remains := self._remains():
            raise ClusterError(f"could not be removed: {', '.join(remains)}")

    def _stop(self) -> None:
        """Processes, namespaces, mounts, link; cluster state and images stay."""
        self._cgroup.kill()
        self._cgroup.remove()
        self._room.remove()
        if mounts := self._room.leftovers():
            # Never delete below a mount: it may show somebody's files.
            raise ClusterError(f"still there: {', '.join(mounts)}", "remove them by hand")
        shutil.rmtree(self.folder / "private", ignore_errors=True)  # as a reboot empties /run
        shutil.rmtree(self.folder / "pids", ignore_errors=True)

    def _remains(self) -> list[str]:
        processes = [f"process {pid}" for pid in self._cgroup.processes()]
        folder = [f"folder {self.folder}"] if self.folder.exists() else []
        return processes + self._room.leftovers() + folder

    # Whose it is, and who may touch it now

    def _refuse_a_strangers(self, to: str) -> None:
        was = stamp.read(self.folder)
        if was is None or was.owner == self._owner or not self._cgroup.processes():
            return
        if not Path(was.owner, "dev", "cluster").exists():
            return  # nobody is left to ask
        raise ClusterError(
            f"cannot {to} node {self.instance.name!r}: it runs, and {was.owner} started it",
            f"take that one down: make -C {was.owner} cluster-down\n"
            f"  or have another beside it: export OUTBOX_CLUSTER_INSTANCE=second",
        )

    # Helpers

    def _components(self) -> list[Component]:
        return [component for stage in stages(self.instance) for component in stage]

    def _supervisor(self) -> Supervisor:
        return Supervisor(self.folder, self._room.enter, self._cgroup.procs)

    def _wanted(self, programs: Path) -> Stamp:
        commands = [component.command for component in self._components()]
        config = json.dumps([commands, dict(files(self.instance))])
        return Stamp(
            owner=self._owner,
            boot=stamp.BOOT_ID.read_text().strip(),
            range=str(self.instance.range),
            programs=programs.name,
            config=hashlib.sha256(config.encode()).hexdigest()[:16],
        )

    def _ctr(self, *arguments: str) -> str:
        address = str(self.folder / "containerd.sock")
        return run("ctr", "--address", address, "--namespace", "k8s.io", *arguments)

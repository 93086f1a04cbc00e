"""
Components as processes that outlive this program: starting, recognising, judging, killing.

Called by `builtin_node`. A component is known by its pid and its start time: after a crash the
number may be somebody else's, and nobody else is ever killed.
"""

import os
import signal
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from ..errors import ClusterError
from .components import Component

INTERVAL_SECONDS = 0.1
READY_WITHIN_SECONDS = 90.0
HUNG_AFTER_SECONDS = 40.0
"""How long one that runs may fail to answer before it is taken for hung: on a machine that is
starved of CPU a healthy one is silent for longer than one would think."""

ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/"}
"""Nothing of the user's: a proxy or a certificate bundle would reach every component."""

JOIN = """
procs=$0 file=$1 partial=$2; shift 2
echo $$ >"$procs" || exit
record() { shift 19; echo "$$ $1" >"$partial" && mv "$partial" "$file"; }
read -r stat </proc/$$/stat
record ${stat##*) }
exec "$@"
"""
"""A shell puts itself into the cgroup and becomes the component: no fork can slip out. It also
writes down who it is, as `start_time` reads it: its parent may be killed before it can."""


class Supervisor:
    def __init__(self, folder: Path, enter: Sequence[str], cgroup_procs: Path) -> None:
        self._pids = folder / "pids"
        self._logs = folder / "log"
        self._enter = enter
        self._cgroup_procs = cgroup_procs

    def bring_up(self, stage: Iterable[Component]) -> list[str]:
        """Start what is dead, restart what is hung, wait until all is well; returns what it did."""
        stage = list(stage)
        for component in stage:
            if self.pid(component) and not self._answers_within(component, HUNG_AFTER_SECONDS):
                self._kill(component)
        started = [component for component in stage if not self.pid(component)]
        for component in started:
            self._start(component)
        deadline = time.monotonic() + READY_WITHIN_SECONDS
        for component in started:
            self._wait_until_well(component, deadline)
        return [component.name for component in started]

    def pid(self, component: Component) -> int | None:
        """None when it does not run, even if another process has its number now."""
        try:
            pid, began = map(int, (self._pids / component.name).read_text().split())
        except (FileNotFoundError, ValueError):  # never started, or killed while writing
            return None
        return pid if start_time(pid) == began else None

    def log_tail(self, component: Component, lines: int = 15) -> str:
        log = self._logs / f"{component.name}.log"
        text = log.read_text(errors="replace") if log.exists() else ""
        return "\n".join(line[:400] for line in text.splitlines()[-lines:])

    def _start(self, component: Component) -> None:
        self._pids.mkdir(exist_ok=True)
        self._logs.mkdir(exist_ok=True)
        with (self._logs / f"{component.name}.log").open("ab") as log:
            process = LeftRunning(
                [
                    *("sh", "-c", JOIN, self._cgroup_procs, self._pids / component.name),
                    # Not beside it, where each file is a component.
                    self._pids.with_name(f"{component.name}.starting"),
                    *(*self._enter, *component.command),
                ],
                cwd="/",
                env=ENVIRONMENT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C and a closed terminal are not for it
            )
        # Here, too: we check for it at once.
        (self._pids / component.name).write_text(f"{process.pid} {start_time(process.pid) or 0}\n")

    def _wait_until_well(self, component: Component, deadline: float) -> None:
        while not is_well(component):
            if not self.pid(component):
                raise ClusterError(f"{component.name} ended early:\n{self.log_tail(component)}")
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"{component.name} is not well after {READY_WITHIN_SECONDS:g} s:\n"
                    f"{self.log_tail(component)}"
                )
            time.sleep(INTERVAL_SECONDS)

    def _answers_within(self, component: Component, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while not is_well(component):
            if not self.pid(component) or time.monotonic() > deadline:
                return False
            time.sleep(INTERVAL_SECONDS)
        return True

    def _kill(self, component: Component) -> None:
        if not (pid := self.pid(component)):
            return
        with suppress(ProcessLookupError):
            handle = os.pidfd_open(pid)
            try:
                if self.pid(component) == pid:  # checked again, now that the number is held
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
            finally:
                os.close(handle)
        while self.pid(component):
            time.sleep(INTERVAL_SECONDS)


class LeftRunning(subprocess.Popen[bytes]):
    """A child that is meant to run on: Python would warn of one that is forgotten."""

    def __del__(self) -> None:
        pass


def start_time(pid: int) -> int | None:
    """In ticks since the machine started; None for what is gone or a zombie."""
    try:
        # The second field, the command's name, may hold anything; what we want follows its ")".
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def is_well(component: Component) -> bool:
    try:
        with _opener.open(component.health, timeout=2) as answer:
            return bool(answer.status == 200)
    except (OSError, urllib.error.HTTPError):
        return False


_trusting = ssl.create_default_context()
_trusting.check_hostname = False
_trusting.verify_mode = ssl.CERT_NONE  # controllers and scheduler sign for themselves
_opener = urllib.request.build_opener(
    urllib.request.ProxyHandler({}),  # never by way of the user's proxy
    urllib.request.HTTPSHandler(context=_trusting),
)

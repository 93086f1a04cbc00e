"""
One server as a child process: starting, waiting until it is ready, stopping, crashing.

The base of `postgres`, `pgbouncer` and `kafka`, which define what to run and how to see that it is
ready. Nothing here knows any of them.
"""

import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

from dev.services.waiting import INTERVAL_SECONDS, wait_until

UNPRIVILEGED = "postgres"
"""Whom servers that refuse to be root run as; Debian's PostgreSQL brings this user along."""

MEMORY = Path("/dev/shm")
PLENTY = 8 << 30
"""Twice what the largest tests take."""

PORTS = range(15_000, 32_768)
"""Below those that Linux gives to processes that ask for any."""
CHANCE = random.SystemRandom()
"""Not a test's, which may have a seed that another test has too."""


class ServerError(RuntimeError):
    """A server is not installed, did not come up, or is not running."""


class Server(ABC):
    ready_within = 60.0
    stop_within = 30.0
    stop_signal = signal.SIGTERM
    orphan_signal = signal.SIGKILL
    """What the kernel sends when the process that started the server is gone."""
    refuses_root = False

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "server.log"
        self._process: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def _command(self) -> list[str]:
        """What to run."""

    @abstractmethod
    def _is_ready(self) -> bool:
        """Does a client get an answer?"""

    @abstractmethod
    def _prepare(self) -> None:
        """Write what the server reads; called before every start."""

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        if self._process is None or not self.running:
            raise ServerError(f"{type(self).__name__} is not running")
        return self._process.pid

    def start(self) -> None:
        """Start and wait until ready; does nothing if it runs already."""
        if self.running:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        if self._as_other_user():
            shutil.chown(self.folder, UNPRIVILEGED, UNPRIVILEGED)
        self._prepare()
        # Note for callers with threads: the kernel means the *thread* that started the server.
        orphan = f"--pdeathsig={self.orphan_signal.name.removeprefix('SIG')}"
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                ["setpriv", orphan, *self._as_other_user(), "--", *self._command()],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for the tests, which then stop us in order
            )
        try:
            self._wait_until_ready()
        except BaseException:
            self.kill()
            raise

    def stop(self) -> None:
        """Stop in good order; a server that does not is killed."""
        if self._process is None:
            return
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGCONT)  # a paused one could not hear the next
            self._process.send_signal(self.stop_signal)
        try:
            self._process.wait(self.stop_within)
        except subprocess.TimeoutExpired:
            self.kill()
        self._process = None

    def kill(self) -> None:
        """Crash it: SIGKILL for the server and all its children, none of which can react."""
        if self._process is None:
            return
        doomed: list[int] = []
        if self.running:
            # Stopped first: otherwise it could fork after its children were listed.
            self._process.send_signal(signal.SIGSTOP)
            doomed = _descendants(self._process.pid)
            for pid in (self._process.pid, *doomed):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self._process.wait()
        self._process = None
        wait_until(lambda: not any(map(is_alive, doomed)), 10, f"end of the children {doomed}")

    def restart(self) -> None:
        self.stop()
        self.start()

    def log_tail(self, lines: int = 30) -> str:
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return "\n".join(text.splitlines()[-lines:])

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + self.ready_within
        while not self._is_ready():
            if not self.running:
                raise ServerError(f"{type(self).__name__} ended early:\n{self.log_tail()}")
            if time.monotonic() > deadline:
                raise ServerError(
                    f"{type(self).__name__} not ready after {self.ready_within:g} s:\n"
                    + self.log_tail()
                )
            time.sleep(INTERVAL_SECONDS)

    def _as_other_user(self) -> list[str]:
        """The words for setpriv; none when there is nothing to change."""
        if not self.refuses_root or os.geteuid() != 0:
            return []
        return [f"--reuid={UNPRIVILEGED}", f"--regid={UNPRIVILEGED}", "--init-groups"]

    def _run(self, *command: str | Path) -> None:
        """A preparing step, as the user whom the server runs as."""
        done = subprocess.run(
            ["setpriv", *self._as_other_user(), "--", *command],
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        if done.returncode != 0:
            raise ServerError(f"{command[0]} failed:\n{done.stdout}{done.stderr}")


@contextmanager
def scratch(in_memory: bool = False) -> Iterator[Path]:
    """
    A folder that goes away, and that the unprivileged user may enter (pytest's may not be).

    `in_memory`: if there is plenty of it, otherwise on the disk as usual.
    """
    place = MEMORY if in_memory and _free_memory() > PLENTY else None
    if place:
        _sweep(place)
    with tempfile.TemporaryDirectory(
        prefix=f"outbox-{os.getpid()}-", dir=place, ignore_cleanup_errors=True
    ) as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


def _sweep(place: Path) -> None:
    """What killed owners left behind: memory that nobody would get back."""
    for folder in place.glob("outbox-[0-9]*-*"):
        if not is_alive(int(folder.name.split("-")[1])):
            shutil.rmtree(folder, ignore_errors=True)


def _free_memory() -> int:
    """What files in memory may take; 0 where there is no such place."""
    try:
        told = Path("/proc/meminfo").read_text().splitlines()
        (available,) = (int(line.split()[1]) for line in told if line.startswith("MemAvailable:"))
        return min(shutil.disk_usage(MEMORY).free, available << 10)
    except (OSError, ValueError):
        return 0


def free_port() -> int:
    """
    A port that nobody uses now, and that is ours until this process ends: asked for once, then kept
    over restarts.

    Not one of the kernel's choice: it takes its own from another range, also for connections, and
    could give ours to somebody while the server is down.
    """
    while not _is_ours(port := CHANCE.choice(PORTS)):
        pass
    return port


def _is_ours(port: int) -> bool:
    with (
        suppress(OSError),
        socket.socket() as tried,
        # The name is for other processes of these tests: the port itself cannot be held for a
        # server that is down.
        socket.socket(socket.AF_UNIX) as name,
    ):
        tried.bind(("127.0.0.1", port))
        name.bind(f"\0outbox-port-{port}")
        name.detach()  # so that it ends with this process
        return True
    return False


def accepts(port: int, host: str = "127.0.0.1") -> bool:
    with suppress(OSError), socket.create_connection((host, port), timeout=1):
        return True
    return False


def is_alive(pid: int) -> bool:
    """Does it still run? A zombie does not: who inherited it may never collect it."""
    state, _ = _state_and_parent(pid)
    return state not in ("", "Z", "X")


def are_stopped(pid: int) -> bool:
    """Has each thread of the process obeyed a SIGSTOP?"""
    threads = (int(entry.name) for entry in Path(f"/proc/{pid}/task").iterdir())
    return all(_state_and_parent(thread)[0] in ("T", "") for thread in threads)


def _descendants(pid: int) -> list[int]:
    pids = [int(entry.name) for entry in Path("/proc").glob("[0-9]*")]
    parents = {pid: _state_and_parent(pid)[1] for pid in pids}
    found: list[int] = []
    level = {pid}
    while level := {child for child, parent in parents.items() if parent in level}:
        found += level
    return found


def _state_and_parent(pid: int) -> tuple[str, int]:
    try:
        # The second field, the command's name, may hold anything; what we want follows its ")".
        state, parent, *_ = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return "", -1
    return state, int(parent)

"""Redis: Debian's server, with an append-only file unless told otherwise. Valkey for what needs a
newer one than Debian 12 has."""

import os
import re
import shutil
import signal
import socket
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from dev.services.process import Server, ServerError, are_stopped, free_port
from dev.services.waiting import wait_until

SETTINGS = {
    "bind": "127.0.0.1",
    "save": '""',
    "appendonly": "yes",
    "maxmemory-policy": "noeviction",
    "repl-diskless-sync-delay": "0",  # five seconds by default, in case more replicas come
}

FIRST_WITH_WAITAOF = (7, 2)


class Redis(Server):
    """`settings` are read at every start: change them and `restart()`."""

    ready_within = 20.0
    # What it has answered is in the append-only file. A replica may take half a minute otherwise.
    stop_signal = signal.SIGKILL

    def __init__(
        self,
        folder: Path,
        settings: Mapping[str, str] | None = None,
        *,
        waits_for_disk: bool = False,
    ) -> None:
        """`waits_for_disk`: one that has WAITAOF."""
        super().__init__(folder)
        self.port = free_port()
        self.settings = {**SETTINGS, **(settings or {})}
        self._program = find_one_that_waits() if waits_for_disk else find_program()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def pause(self) -> None:
        """Freeze it: connections stay open and nobody answers."""
        os.kill(self.pid, signal.SIGSTOP)
        # The signal is sent, not yet obeyed: it may answer once more.
        wait_until(lambda: are_stopped(self.pid), 10, "all threads of Redis stand still")

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def _prepare(self) -> None:
        settings = {"port": str(self.port), "dir": str(self.folder), **self.settings}
        config = self.folder / "redis.conf"
        config.write_text("".join(f"{name} {value}\n" for name, value in settings.items()))

    def _command(self) -> list[str]:
        return [self._program, str(self.folder / "redis.conf")]

    def _is_ready(self) -> bool:
        with (
            suppress(OSError),
            socket.create_connection(("127.0.0.1", self.port), timeout=2) as conn,
        ):
            conn.sendall(b"PING\r\n")
            return conn.recv(64).startswith((b"+PONG", b"-NOAUTH"))  # not -LOADING
        return False


def find_program() -> str:
    if found := shutil.which("redis-server"):
        return found
    raise ServerError("Redis is not installed: apt-get install redis-server (or: make dev)")


def find_one_that_waits() -> str:
    """Debian's Redis if it is new enough, otherwise the Valkey that dev/setup fetched."""
    told = subprocess.run([find_program(), "--version"], capture_output=True, text=True, check=True)
    version = re.search(r"v=(\d+)\.(\d+)", told.stdout)
    if version and (int(version[1]), int(version[2])) >= FIRST_WITH_WAITAOF:
        return find_program()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    valkey = cache / "outbox-operator" / "valkey" / "usr" / "bin" / "valkey-server"
    if not valkey.exists():
        raise ServerError(f"no Valkey at {valkey}: run `make dev`")
    return str(valkey)

"""NATS: one server with JetStream, built by dev/setup from its Go module."""

import json
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dev.cluster.binaries import built_nats
from dev.services.process import Server, ServerError, accepts, are_stopped, free_port
from dev.services.waiting import wait_until


class Nats(Server):
    """`settings` are read at every start: change them and `restart()`. Each acknowledgement means
    that the disk has it (`sync_interval: always`), unless they say otherwise."""

    def __init__(self, folder: Path, settings: Mapping[str, Any] | None = None) -> None:
        super().__init__(folder)
        self.port = free_port()
        self.settings: dict[str, Any] = dict(settings or {})
        self._program = built_nats()
        if not self._program.exists():
            raise ServerError(f"no nats-server at {self._program}: run `make dev`")

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    def pause(self) -> None:
        """Freeze it: connections stay open and nobody answers."""
        os.kill(self.pid, signal.SIGSTOP)
        wait_until(lambda: are_stopped(self.pid), 10, "all threads of NATS stand still")

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def _prepare(self) -> None:
        settings = {
            "host": "127.0.0.1",
            "port": self.port,
            "jetstream": {"store_dir": str(self.folder / "data"), "sync_interval": "always"},
            **self.settings,
        }
        # Its configuration's language has JSON as a part.
        (self.folder / "nats.conf").write_text(json.dumps(settings))

    def _command(self) -> list[str]:
        return [str(self._program), "--config", str(self.folder / "nats.conf")]

    def _is_ready(self) -> bool:
        # It listens when its streams are there.
        return accepts(self.port)

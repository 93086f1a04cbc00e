"""NATS: one server with JetStream, or a cluster of them; built by dev/setup from its Go module."""

import json
import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from dev.cluster.binaries import built_nats
from dev.services.process import Server, ServerError, accepts, are_stopped, free_port
from dev.services.waiting import wait_until


class Nats(Server):
    """`settings` are read at every start: change them and `restart()`. Each acknowledgement means
    that the disk has it (`sync_interval: always`), unless they change that."""

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

    @property
    def answers(self) -> bool:
        """Neither down nor paused."""
        return self.running and not are_stopped(self.pid)

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


class NatsCluster:
    """
    Three servers with routes to each other: each has a replica of a stream that has three.

    To elect a leader takes them 4 to 9 seconds, and no setting makes it shorter.
    """

    def __init__(self, folder: Path) -> None:
        names = ("n1", "n2", "n3")
        ports = {name: free_port() for name in names}
        routes = [f"nats://127.0.0.1:{port}" for port in ports.values()]
        self.nodes = {
            name: Nats(
                folder / name,
                {
                    "server_name": name,
                    "cluster": _cluster(port, routes),
                    "lame_duck_grace_period": "1s",  # ten by default
                },
            )
            for name, port in ports.items()
        }
        self.alone: Nats | None = None
        """The one that is cut off."""

    @property
    def urls(self) -> tuple[str, ...]:
        return tuple(node.url for node in self.nodes.values())

    @contextmanager
    def cut_off(self, node: Nats) -> Iterator[None]:
        """It runs, and the others do not reach it, nor it them."""
        connected = node.settings["cluster"]
        node.stop()
        # Without routes it would not start: to nobody.
        nobody = f"nats://127.0.0.1:{free_port()}"
        node.settings["cluster"] = _cluster(free_port(), [nobody])
        node.start()
        self.alone = node
        try:
            yield
        finally:
            self.alone = None
            node.stop()
            node.settings["cluster"] = connected
            node.start()

    def heal(self) -> None:
        """Whatever was killed or paused."""
        for node in self.nodes.values():
            if node.running:
                node.resume()
            node.start()

    def __enter__(self) -> Self:
        self.heal()
        return self

    def __exit__(self, *_: object) -> None:
        for node in self.nodes.values():
            node.kill()  # in good order, the last would wait for a majority


def _cluster(port: int, routes: list[str]) -> dict[str, Any]:
    return {"name": "c", "listen": f"127.0.0.1:{port}", "routes": routes, "pool_size": 1}

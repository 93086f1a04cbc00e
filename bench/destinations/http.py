"""
HTTP endpoints: nginx, which answers 204 and writes down when it did and the event's number.

One endpoint; or fifty, of which each event's tenant chooses one. The fifty are addresses of
loopback with one port, and the last of them may be dead: nobody listens there, or somebody does and
never answers.
"""

import socket
import time
from array import array
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from bench.destinations.base import Arrival, Destination, Inbox, Receiver, Sink
from bench.workload import Shape
from dev.services import Nginx

CONNECTIONS = 16
ENDPOINTS = 50


class OneEndpoint(Destination):
    warm_up_events = 5_000
    hosts: tuple[str, ...] = ("127.0.0.1",)
    """Where nginx listens."""

    def _start(self, folder: Path, stack: ExitStack) -> Nginx:
        nginx = stack.enter_context(Nginx(folder / "nginx", self.hosts))
        self.port = nginx.port
        self._log = nginx.arrivals
        self._begin = self._counted_to = self._count = 0
        return nginx

    def create(self, name: str) -> None:
        self._begin = self._counted_to = self._log.stat().st_size
        self._count = 0

    def delete(self, name: str) -> None:
        pass

    def size(self, name: str) -> int:
        with self._log.open("rb") as log:
            log.seek(self._counted_to)
            new = log.read()
        self._counted_to += len(new)
        self._count += new.count(b"\n")
        return self._count

    def read(self, name: str) -> Iterator[Arrival]:
        return arrivals(self._log, self._begin)

    def receiver(self, name: str) -> Receiver:
        return partial(receive, self._log, self._log.stat().st_size)

    def publisher(self, name: str) -> Mapping[str, Any]:
        url = f"http://{self.hosts[0]}:{self.port}/{name}"
        return {"http": {"url": url, "concurrency": CONNECTIONS, "perEndpoint": CONNECTIONS}}

    def sink(self, name: str) -> Sink:
        # One event per request, as ours: its batch mode makes another message of them, an array.
        return Sink("http", {"url": f"http://{self.hosts[0]}:{self.port}/{name}"}, text=True)


class FiftyEndpoints(OneEndpoint):
    shape = Shape(tenants=ENDPOINTS)
    network: ClassVar[str] = "127.0.1"
    living: ClassVar[int] = ENDPOINTS

    def _start(self, folder: Path, stack: ExitStack) -> Nginx:
        self.hosts = tuple(f"{self.network}.{n + 1}" for n in range(self.living))
        return super()._start(folder, stack)

    def publisher(self, name: str) -> Mapping[str, Any]:
        return {
            "http": {
                "url": f"http://{self.network}.{{tenant_id}}:{self.port}/{name}",
                "concurrency": CONNECTIONS,
                "allowedHosts": [f"{self.network}.{n + 1}" for n in range(ENDPOINTS)],
                "allowedNetworks": ["127.0.0.0/8"],
            }
        }

    def sink(self, name: str) -> Sink:
        raise NotImplementedError("Debezium Server sends all events to one URL")

    def reachable(self, events: int) -> int:
        # The tenants take turns, so the last of them has every fiftieth event.
        return events - events // ENDPOINTS * (ENDPOINTS - self.living)


class OneRefuses(FiftyEndpoints):
    network = "127.0.2"
    living = ENDPOINTS - 1


class OneIsSilent(FiftyEndpoints):
    network = "127.0.3"
    living = ENDPOINTS - 1

    def _start(self, folder: Path, stack: ExitStack) -> Nginx:
        nginx = super()._start(folder, stack)
        # The kernel takes connections and requests for it, and nobody ever reads them.
        silent = stack.enter_context(socket.socket())
        silent.bind((f"{self.network}.{ENDPOINTS}", self.port))
        silent.listen(4096)
        return nginx


def arrivals(log: Path, begin: int) -> Iterator[Arrival]:
    with log.open("rb") as lines:
        lines.seek(begin)
        for line in lines:
            if line.endswith(b"\n"):
                at, number = line.split()
                yield Arrival(int(number), float(at))


def receive(log: Path, begin: int, first: int, events: int, until_ns: int) -> "array[int]":
    """Reads the log when all are there: nginx has stamped each line."""
    while log.read_bytes()[begin:].count(b"\n") < events and time.monotonic_ns() < until_ns:
        time.sleep(0.5)
    return Inbox(first, events).add_stamped(arrivals(log, begin)).received

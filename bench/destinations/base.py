"""
What the scenarios need from a destination: a place for each measurement, what is in it, and when it
came; and how each system is configured to send there.

A module beside this one for each kind of server. None of them measures anything.
"""

import time
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from bench.workload import PLAIN, Shape, key_of
from dev.services import Server


class Arrival(NamedTuple):
    number: int
    at: float
    """Seconds since 1970 by the server's own stamp; 0 if it has none."""


@dataclass(frozen=True)
class Contents:
    first_at: float
    last_at: float
    """0 if the server stamps nothing."""
    distinct: int
    duplicates: int
    violations: int
    """Events that arrived after a later event of their key, first deliveries only."""


Receiver = Callable[[int, int, int], "array[int]"]
"""For events from a first number on, so many, until a time of the monotonic clock: when each
arrived, on that clock; 0 if it did not. Runs in a process of its own, so it can be pickled."""


@dataclass(frozen=True)
class Sink:
    """How Debezium Server is configured to send here."""

    type: str
    settings: Mapping[str, str]
    """Without the prefix `debezium.sink.<type>.`"""
    text: bool = False
    """Whether it takes strings only, so that the column of the payload must be text."""
    java: tuple[str, ...] = field(default=())


class Destination(ABC):
    shape: ClassVar[Shape] = PLAIN
    check_every_seconds: ClassVar[float] = 0.1
    """Between two calls of `size` in a drain, so that they cost the server little."""
    warm_up_events: ClassVar[int] = 20_000
    """Published before latency is measured."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        """`stack` stops the server in the end."""
        self.folder = folder
        self.server = self._start(folder, stack)

    @abstractmethod
    def _start(self, folder: Path, stack: ExitStack) -> Server: ...

    @abstractmethod
    def create(self, name: str) -> None:
        """A topic, stream, queue or mailbox, empty."""

    @abstractmethod
    def delete(self, name: str) -> None: ...

    @abstractmethod
    def size(self, name: str) -> int:
        """How many messages there are, copies included."""

    @abstractmethod
    def read(self, name: str) -> Iterator[Arrival]:
        """Every message, those of a key in the order of their arrival. It may take them away."""

    @abstractmethod
    def receiver(self, name: str) -> Receiver:
        """Knows what arrives from now on."""

    @abstractmethod
    def publisher(self, name: str) -> Mapping[str, Any]:
        """`publisher` of relay.yaml."""

    def sink(self, name: str) -> Sink:
        raise NotImplementedError(f"Debezium Server has no sink for {type(self).__name__}")

    def reachable(self, events: int) -> int:
        """How many of so many events can arrive at all."""
        return events

    def contents(self, name: str, keys: int, first: int = 0) -> Contents:
        """Of the events from this number on."""
        seen: set[int] = set()
        newest: dict[int, int] = {}
        duplicates = violations = 0
        earliest, latest = float("inf"), 0.0
        for n, at in self.read(name):
            if n < first:
                continue
            earliest, latest = min(earliest, at), max(latest, at)
            if n in seen:
                duplicates += 1
                continue
            seen.add(n)
            key = key_of(n, keys)
            violations += n < newest.get(key, -1)
            newest[key] = max(n, newest.get(key, -1))
        return Contents(earliest if seen else 0.0, latest, len(seen), duplicates, violations)


class Inbox:
    """When each event arrived, for receivers to fill."""

    def __init__(self, first: int, events: int) -> None:
        self.received = array("q", bytes(8 * events))
        self.missing = events
        self._first = first

    def add(self, number: int, at_ns: int) -> None:
        i = number - self._first
        if 0 <= i < len(self.received) and not self.received[i]:
            self.received[i] = at_ns
            self.missing -= 1

    def add_stamped(self, arrivals: Iterable[Arrival]) -> "Inbox":
        """By the server's stamps: on the clock of the day, which is this machine's too."""
        offset_ns = time.time_ns() - time.monotonic_ns()
        for number, at in arrivals:
            self.add(number, int(at * 1e9) - offset_ns)
        return self

"""
From names to addresses and connections within a deadline. Called wherever a publisher connects.

The system's resolver has no deadline and cannot be interrupted. So it works on a thread of its own,
and its caller stops waiting at the deadline; a later answer is dropped.
"""

import socket
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")
AddressInfo = tuple[socket.AddressFamily, socket.SocketKind, int, str, Any]
"""As `socket.getaddrinfo` has it."""


def look_up(host: str, port: int, until: float) -> Sequence[AddressInfo]:
    """OSError if the host has no address; TimeoutError if the answer does not come in time."""
    return in_time(beside(lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)), until)


def reach(host: str, port: int, until: float) -> socket.socket:
    """A socket connected to the first address that answers; its timeout is the time that is left.
    Each address gets a share of the time: a silent one must not use up that of the others."""
    found = look_up(host, port, until)
    failure = OSError("its name has no address")
    for tried, (family, kind, protocol, _, place) in enumerate(found):
        made = socket.socket(family, kind, protocol)
        try:
            made.settimeout(_left(until) / (len(found) - tried))
            made.connect(place)
            made.settimeout(_left(until))
        except OSError as error:
            made.close()
            failure = error
        else:
            return made
    raise failure


def beside(ask: Callable[[], T]) -> Future[T]:
    """What `ask` will return or raise. Setting the future before that ends the wait."""
    found: Future[T] = Future()

    def run() -> None:
        with suppress(InvalidStateError):
            try:
                found.set_result(ask())
            except UnicodeError as error:  # such as a label of more than 63 characters
                found.set_exception(OSError(str(error)))
            except Exception as error:
                found.set_exception(error)

    threading.Thread(target=run, name="resolve", daemon=True).start()
    return found


def in_time(found: Future[T], until: float) -> T:
    try:
        return found.result(max(0.0, until - time.monotonic()))
    except TimeoutError:
        if found.done():  # it is the resolver's own
            raise
        raise TimeoutError("its name was not resolved in time") from None


def _left(until: float) -> float:
    return max(0.001, until - time.monotonic())

"""
One `up` or `down` at a time.

A name in the kernel instead of a file: it ends with us however we end, and nothing is left.
"""

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

from ..progress import say


@contextmanager
def alone(name: str) -> Iterator[None]:
    with socket.socket(socket.AF_UNIX) as held:
        told = False
        while not _take(held, name):
            if not told:
                say("waiting for another `make cluster` or `make cluster-down`")
                told = True
            time.sleep(0.2)
        yield


def _take(held: socket.socket, name: str) -> bool:
    try:
        held.bind(f"\0{name}")
    except OSError:
        return False
    return True

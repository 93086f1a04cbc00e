"""Waiting for something to become true, instead of sleeping and hoping."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

INTERVAL_SECONDS = 0.02


def wait_until(predicate: Callable[[], T], timeout: float, what: str) -> T:
    """Poll until the predicate's value is truthy, and return it, or fail with `what` at the end."""
    deadline = time.monotonic() + timeout
    while not (value := predicate()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {timeout:g} s: {what}")
        time.sleep(INTERVAL_SECONDS)
    return value

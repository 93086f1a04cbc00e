"""
Reports what is being done, what it costs, and how long it has been running.

To stderr: standard output is for results.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Report = Callable[[str], None]

WIDTH = 96


def say(text: str) -> None:
    print(f"images: {text}", file=sys.stderr, flush=True)


@contextmanager
def step(what: str, cost: str = "") -> Iterator[Report]:
    """Report what begins and when it has ended, and in between how far it is."""
    say(f"{what}, {cost} ..." if cost else f"{what} ...")
    begin = time.monotonic()

    def report(detail: str) -> None:
        say(f"  [{duration(time.monotonic() - begin):>6}] {detail}"[:WIDTH])

    verdict = "failed after"
    try:
        yield report
        verdict = "done in"
    finally:
        say(f"{what}: {verdict} {duration(time.monotonic() - begin)}")


def duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02} min" if minutes else f"{seconds:.0f} s"

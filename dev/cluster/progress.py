"""
Reports what is being done, and for how long.

Everything goes to stderr: `env` is meant for a shell's eval, and may have to build first.
"""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

PREFIX = "cluster: "


def say(text: str) -> None:
    print(f"{PREFIX}{text}", file=sys.stderr, flush=True)


@contextmanager
def step(what: str, detail: Callable[[], str] = lambda: "") -> Iterator[None]:
    """Report what begins, how long it has been running, and how long it took or when it failed."""
    say(f"{what} ...")
    begin = time.monotonic()
    over = threading.Event()
    terminal = sys.stderr.isatty()

    def tick() -> None:
        # A terminal's line is rewritten; a log gets a new line, hence fewer of them.
        while not over.wait(1 if terminal else 30):
            more = f", {found}" if (found := detail()) else ""
            line = f"{PREFIX}  {duration(time.monotonic() - begin)}{more}"
            print(f"\r{line:<78}\r" if terminal else f"{line}\n", end="", file=sys.stderr)
            sys.stderr.flush()

    ticker = threading.Thread(target=tick, daemon=True)
    ticker.start()
    verdict = "failed after"
    try:
        yield
        verdict = "done in"
    finally:
        over.set()
        ticker.join()
        if terminal:
            print(f"\r{'':<78}\r", end="", file=sys.stderr)
        say(f"{what.partition(', ')[0]}: {verdict} {duration(time.monotonic() - begin)}")


def duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    if minutes:
        return f"{minutes} min {rest} s"
    return f"{seconds:.1f} s" if seconds < 10 else f"{rest} s"

"""
What the reader sees: steps, and commands that can be typed again, with what they really print.

Used by `story` alone. A command that fails, or something that does not happen, ends the demo.
"""

import shlex
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

LONGEST = 120
"""Seconds that one command may take: each has a shorter timeout of its own where it waits."""
POLL_SECONDS = 0.5


class DemoError(Exception):
    """What was promised and did not happen, in a sentence."""


class Terminal:
    def __init__(self, folder: Path, environ: Mapping[str, str]) -> None:
        self._folder = folder
        self._environ = environ
        self._begun = time.monotonic()
        self._steps = 0

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self._begun

    def step(self, title: str, *more: str) -> None:
        self._steps += 1
        print(f"\n[{self.elapsed:3.0f} s] {self._steps}. {title}", flush=True)
        self.say(*more)

    def say(self, *lines: str) -> None:
        for line in lines:
            print(f"    {line}", flush=True)

    def show(self, command: str, given: Path | None = None) -> str:
        """Run it where everybody sees it; `given` is what it reads, as the shell's `<`."""
        source = f" < {shlex.quote(self._near(given))}" if given else ""
        print(f"  $ {command}{source}", flush=True)
        said = self.ask(command, given)
        for line in said.splitlines():
            print(f"    {line}".rstrip(), flush=True)
        return said

    def ask(self, command: str, given: Path | None = None) -> str:
        """The same, without showing it."""
        try:
            ran = subprocess.run(
                shlex.split(command),
                input=given.read_text() if given else "",
                capture_output=True,
                text=True,
                timeout=LONGEST,
                cwd=self._folder,
                env=self._environ,
            )
        except subprocess.TimeoutExpired:
            raise DemoError(f"this did not end within {LONGEST} s: {command}") from None
        if ran.returncode:
            raise DemoError(f"{command}: {(ran.stderr or ran.stdout).strip()}")
        return ran.stdout

    def wait(self, seen: Callable[[], bool], within: float, what: str) -> None:
        deadline = time.monotonic() + within
        while not seen():
            if time.monotonic() > deadline:
                raise DemoError(f"this did not happen within {within:g} s: {what}")
            time.sleep(POLL_SECONDS)

    def _near(self, path: Path) -> str:
        """As one types it in the project's folder."""
        return str(path.relative_to(self._folder) if path.is_relative_to(self._folder) else path)

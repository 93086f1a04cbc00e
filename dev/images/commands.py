"""
Running a builder: its output goes to a log, the steps that it names to the reader, and if it fails
the end of the log does too. Called by `engines` and `base`; knows none of the builders.
"""

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from .errors import ImageError
from .progress import Report

TAIL = 25
STEP = re.compile(r"(?:\[\S+\] )?(STEP .*)|#\d+ (\[.*)")
"""How buildah and Docker begin the line of a step."""


class CommandFailed(ImageError):
    def __init__(self, command: Sequence[str], log: Path, output: str) -> None:
        full = "No space left on device" in output
        cure = f"the disk of {log.parent} is full: make room there" if full else f"all of it: {log}"
        tail = "\n".join(f"  | {line}" for line in output.splitlines()[-TAIL:])
        super().__init__(f"{command[0]} failed:\n{tail}", cure)
        self.output = output


def run(
    command: Sequence[str],
    log: Path,
    report: Report | None = None,
    environ: Mapping[str, str] | None = None,
) -> str:
    """Add to the log; return what came out."""
    log.parent.mkdir(parents=True, exist_ok=True)
    lines = []
    with (
        log.open("a") as file,
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env={**os.environ, **(environ or {})},
        ) as process,
    ):
        assert process.stdout
        for line in process.stdout:
            file.write(line)
            lines.append(line)
            if report and (found := STEP.match(line)):
                report(found[1] or found[2])
    output = "".join(lines)
    if process.returncode != 0:
        raise CommandFailed(command, log, output)
    return output
